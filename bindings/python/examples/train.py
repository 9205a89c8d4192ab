"""Training on tokens that are larger than memory: a DataLoader with 4 workers, which share one budget.

Needs torch. The model predicts the next token from the last one: the tokens are made so that it can.
"""

import numpy as np
import torch
from sizes import arguments, in_bytes, scratch

import elbowroom as er

VOCABULARY, LENGTH = 64, 128


def make_tokens(path, count):
    """Each token is the one before, plus 1 or, one time in ten, plus 2."""
    rng, last = np.random.default_rng(1), 0
    with open(path, "wb") as file:
        for at in range(0, count, 1 << 20):
            steps = 1 + (rng.random(min(1 << 20, count - at)) < 0.1)
            tokens = (last + np.cumsum(steps)) % VOCABULARY
            last = tokens[-1]
            file.write(tokens.astype("u2").tobytes())


class Tokens(torch.utils.data.Dataset):
    """Windows of LENGTH tokens. The array is sent to workers by reference: they map the file."""

    def __init__(self, path):
        self.tokens = er.memmap(path, dtype="u2", mode="r")

    def __len__(self):
        return len(self.tokens) // (LENGTH + 1)

    def __getitem__(self, nth):
        window = self.tokens[nth * (LENGTH + 1) : (nth + 1) * (LENGTH + 1)].astype("i8")
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


def main():
    args = arguments(__doc__.splitlines()[0], memory="2GiB", times=4)
    # This process and its workers have the memory together.
    er.configure(memory=args.memory, swap=0, swap_dir=args.dir, shared=True)
    with scratch(args.dir) as directory:
        path = directory / "tokens.bin"
        make_tokens(path, args.times * in_bytes(args.memory) // 2)
        data = Tokens(path)
        # Workers that are spawned have managed arrays; files of forked ones are the kernel's.
        loader = torch.utils.data.DataLoader(
            data, batch_size=512, shuffle=True, num_workers=4, multiprocessing_context="spawn"
        )
        torch.manual_seed(1)
        model = torch.nn.Embedding(VOCABULARY, VOCABULARY)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
        losses = []
        for step, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == 20:
                break
        print(f"{len(data):,} windows, loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
        # The tokens have 0.325 nats: -0.9 ln 0.9 - 0.1 ln 0.1.
        assert losses[0] > 3 and losses[-1] < 0.5, losses


if __name__ == "__main__":
    main()
