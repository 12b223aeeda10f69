//! A matrix in device memory.

use flagstone::driver::sim::CuResult;

use super::INVALID_VALUE;
use super::element::Element;

/// A matrix by columns, transposed or not.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub numbers: Element,
    pub addr: u64,
    /// As it lies in memory.
    rows: usize,
    columns: usize,
    leading: usize,
    transposed: bool,
}

impl Matrix {
    /// A matrix of `rows` and `columns` as it lies in memory, each column `leading` elements after the one before.
    pub fn new(numbers: Element, addr: u64, (rows, columns): (usize, usize), leading: usize) -> CuResult<Self> {
        if leading < rows.max(1) {
            return Err(INVALID_VALUE);
        }
        Ok(Self {
            numbers,
            addr,
            rows,
            columns,
            leading,
            transposed: false,
        })
    }

    /// The matrix transposed as a `cublasOperation_t` says; none of the elements is complex.
    pub const fn operated(mut self, operation: u32) -> CuResult<Self> {
        match operation {
            0 => self.transposed = false,
            1 | 2 => self.transposed = true,
            _ => return Err(INVALID_VALUE),
        }
        Ok(self)
    }

    /// Its transposed.
    pub const fn flipped(mut self) -> Self {
        self.transposed = !self.transposed;
        self
    }

    /// The matrix so many elements further on.
    pub const fn at(mut self, elements: i64) -> Self {
        let bytes = elements.wrapping_mul(self.numbers.bytes() as i64);
        self.addr = self.addr.wrapping_add_signed(bytes);
        self
    }

    /// Rows and columns, after transposition.
    pub const fn shape(&self) -> (usize, usize) {
        if self.transposed {
            (self.columns, self.rows)
        } else {
            (self.rows, self.columns)
        }
    }

    /// From the first element to the last.
    pub fn bytes(&self) -> u64 {
        let before = self.columns.checked_sub(1).filter(|_| self.rows > 0);
        let elements = before.map_or(0, |before| before * self.leading + self.rows);
        (elements * self.numbers.bytes()) as u64
    }

    /// The address of an element.
    pub const fn element(&self, row: usize, column: usize) -> u64 {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        self.addr + ((column * self.leading + row) * self.numbers.bytes()) as u64
    }
}
