//! A product of two matrices, and how it is computed.

use flagstone::driver::sim::{CuResult, Device, Work};

use super::element::Element;
use super::matrix::Matrix;
use super::{INVALID_VALUE, NOT_SUPPORTED};
use crate::peers::{reads, writes};

/// `d = alpha * a * b + beta * c + bias`, with a bias for each row. Sums of numbers of 16 and 32 bits are of 32 bits.
#[derive(Clone, Copy)]
pub struct Product {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    d: Matrix,
    alpha: f64,
    beta: f64,
    bias: Option<(Element, u64)>,
}

impl Product {
    /// The product, if the matrices go together.
    pub fn new([a, b, c, d]: [Matrix; 4], (alpha, beta): (f64, f64), bias: Option<(Element, u64)>) -> CuResult<Self> {
        let ((rows, depth), (b_rows, columns)) = (a.shape(), b.shape());
        if depth != b_rows || c.shape() != (rows, columns) || d.shape() != c.shape() {
            return Err(INVALID_VALUE);
        }
        if a.numbers != b.numbers || (a.numbers == Element::F64) != (d.numbers == Element::F64) {
            return Err(NOT_SUPPORTED);
        }
        Ok(Self {
            a,
            b,
            c,
            d,
            alpha,
            beta,
            bias,
        })
    }

    /// The product of the next matrices of a batch, so many elements further on each.
    pub const fn at(mut self, [a, b, c, d]: [i64; 4]) -> Self {
        (self.a, self.b, self.c, self.d) = (self.a.at(a), self.b.at(b), self.c.at(c), self.d.at(d));
        self
    }

    /// The product of what is at other addresses.
    pub fn moved(mut self, address: impl Fn(u64) -> u64) -> Self {
        for matrix in [&mut self.a, &mut self.b, &mut self.c, &mut self.d] {
            matrix.addr = address(matrix.addr);
        }
        self.bias = self.bias.map(|(element, addr)| (element, address(addr)));
        self
    }

    /// Work of the device that touches the product's memory too.
    pub fn touches(&self, mut work: Work, device: &Device) -> Work {
        for matrix in [self.a, self.b] {
            work = reads(work, device, matrix.addr, matrix.bytes());
        }
        if self.beta != 0.0 {
            work = reads(work, device, self.c.addr, self.c.bytes());
        }
        if let Some((element, addr)) = self.bias {
            work = reads(work, device, addr, (self.d.shape().0 * element.bytes()) as u64);
        }
        writes(work, device, self.d.addr, self.d.bytes())
    }

    /// Computes it, at addresses that the host can reach. The device has checked that it has memory at all that is touched.
    pub fn compute(&self) {
        let ((rows, depth), (_, columns)) = (self.a.shape(), self.b.shape());
        // SAFETY: there is memory at both matrices.
        let (a, b) = unsafe { (values(self.a), values(self.b.flipped())) };
        for column in 0..columns {
            for row in 0..rows {
                let (left, right) = (&a[row * depth..][..depth], &b[column * depth..][..depth]);
                // SAFETY: as above.
                unsafe { self.finish(row, column, self.sum(left, right)) };
            }
        }
    }

    fn sum(&self, left: &[f64], right: &[f64]) -> f64 {
        let terms = left.iter().zip(right);
        if self.d.numbers == Element::F64 {
            terms.map(|(left, right)| left * right).sum()
        } else {
            f64::from(terms.map(|(&left, &right)| left as f32 * right as f32).sum::<f32>())
        }
    }

    /// # Safety
    /// There is memory at all matrices, and at the bias.
    unsafe fn finish(&self, row: usize, column: usize, sum: f64) {
        let mut result = self.alpha * sum;
        // SAFETY: the caller's promise.
        unsafe {
            // C may hold anything, also no number, where beta is 0.
            if self.beta != 0.0 {
                result += self.beta * self.c.numbers.load(self.c.element(row, column));
            }
            if let Some((element, addr)) = self.bias {
                result += element.load(addr + (row * element.bytes()) as u64);
            }
            self.d.numbers.store(self.d.element(row, column), result);
        }
    }
}

/// The numbers of a matrix, row by row.
///
/// # Safety
/// There is memory at the matrix.
unsafe fn values(matrix: Matrix) -> Vec<f64> {
    let (rows, columns) = matrix.shape();
    let places = (0..rows).flat_map(|row| (0..columns).map(move |column| matrix.element(row, column)));
    // SAFETY: the caller's promise.
    places.map(|addr| unsafe { matrix.numbers.load(addr) }).collect()
}
