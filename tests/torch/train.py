"""Train a small language model: mixed precision, gradient accumulation, batches copied ahead, evaluation now and then.

python train.py [--steps N] [--device cuda]    # prints the losses as JSON, a line for each evaluation
"""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 32, 16, 32, 2, 2


class Block(nn.Module):
    """Attention and two layers, each with a way around it."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """A decoder-only transformer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def sequences(count):
    """Return sequences in which each token follows from the one before, and their continuations."""
    steps = torch.randint(1, 4, (count, 1)) * torch.arange(CONTEXT + 1)
    tokens = (torch.randint(0, VOCABULARY, (count, 1)) + steps) % VOCABULARY
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def batches(loader, device):
    """Yield batches on the device; a side stream copies each while the one before it is worked on."""
    if device == "cpu":
        yield from loader
        return
    side, ready = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(side):
            ahead = [part.to(device, non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(side)
        for part in ahead:
            part.record_stream(torch.cuda.current_stream())
        ready = ahead
    yield ready


@torch.no_grad()
def evaluate(model, loader, device):
    """Return the mean loss."""
    model.eval()
    losses = [model(tokens, targets) for tokens, targets in batches(loader, device)]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--every", type=int, default=4, help="steps from one evaluation to the next")
    arguments = parser.parse_args()
    device, pinned = arguments.device, arguments.device == "cuda"

    torch.manual_seed(0)
    training = DataLoader(sequences(512), 16, shuffle=True, pin_memory=pinned, num_workers=1, persistent_workers=True)
    validation = DataLoader(sequences(64), 32, pin_memory=pinned)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))
    scaler = torch.amp.GradScaler(device)

    step, seen, total = 0, 0, torch.zeros((), device=device)
    while step < arguments.steps:
        for tokens, targets in batches(training, device):
            with torch.autocast(device, dtype=torch.float16):
                loss = model(tokens, targets) / arguments.accumulate
            scaler.scale(loss).backward()
            total += loss.detach() / arguments.every
            seen += 1
            if seen % arguments.accumulate:
                continue
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % arguments.every == 0:
                losses = {"training": total.item(), "validation": evaluate(model, validation, device)}
                print(json.dumps({"step": step, **losses, "norm": norm.item()}), flush=True)
                total.zero_()
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
