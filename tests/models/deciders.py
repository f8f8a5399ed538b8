"""Small networks whose sizes their data decides: length regulators, decoders, detectors."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class FastSpeech2(nn.Module):
    """A length regulator by cumulative sums; pitch by bucketize."""

    bins: torch.Tensor

    def __init__(self, c=16, vocab=20, mels=8):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, c), nn.Embedding(600, c)
        self.dp, self.pp = nn.Linear(c, 1), nn.Linear(c, 1)
        self.pitch = nn.Embedding(8, c)
        self.register_buffer("bins", torch.linspace(-1, 1, 7))
        self.dec, self.out = nn.Conv1d(c, c, 3, padding=1), nn.Linear(c, mels)

    def forward(self, ids, alpha):
        x = self.emb(ids)
        d = torch.clamp(torch.round((torch.exp(self.dp(x).squeeze(-1)) - 1) * alpha + 1), min=0)
        p = self.pitch(torch.bucketize(self.pp(x).squeeze(-1), self.bins))
        x = x + p
        ends = torch.cumsum(d, 1)
        n: Any = ends[:, -1].max().long()
        frame = torch.arange(n)
        owner = (frame[None, :, None] >= ends[:, None, :]).sum(-1)  # [b, n]
        mask = frame[None] < ends[:, -1:]
        y = torch.gather(F.pad(x, (0, 0, 0, 1)), 1, owner.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        y = y + self.pos(frame)
        y = F.relu(self.dec(y.transpose(1, 2))).transpose(1, 2)
        return self.out(y) * mask.unsqueeze(-1), mask


class FastPitch(nn.Module):
    """NVIDIA's regulate_len: cumulative sums against a range, a product."""

    def __init__(self, c=16, vocab=20):
        super().__init__()
        self.emb, self.dp, self.dec = nn.Embedding(vocab, c), nn.Linear(c, 1), nn.GRU(c, c, batch_first=True)

    def forward(self, ids, pace):
        x = self.emb(ids)
        d = torch.clamp(torch.exp(self.dp(x).squeeze(-1)) - 1, 0, 75)
        reps = (d / pace + 0.5).floor().long() + 1
        lens = reps.sum(1)
        cum = torch.cumsum(F.pad(reps, (1, 0)), 1)[:, None, :].to(x.dtype)
        r = torch.arange(lens.max())[None, :, None]
        mult = ((cum[:, :, :-1] <= r) & (cum[:, :, 1:] > r)).to(x.dtype)
        y, _ = self.dec(mult @ x)
        return y, lens


class CTC(nn.Module):
    """Greedy decoding: collapse repeats, drop blanks."""

    def __init__(self, c=8, v=5):
        super().__init__()
        self.net, self.out = nn.GRU(c, 16, batch_first=True, bidirectional=True), nn.Linear(32, v)

    def forward(self, x):
        p = self.out(self.net(x)[0])[0].log_softmax(-1)
        s, best = p.max(-1)
        keep = torch.cat([torch.ones(1, dtype=torch.bool), best[1:] != best[:-1]]) & (best != 0)
        at = keep.nonzero().squeeze(1)
        return best[at], s[at], at


class Unique(nn.Module):
    """Voxels: points to cells, the mean of each distinct cell, a network on these."""

    def __init__(self, c=8):
        super().__init__()
        self.lin, self.out = nn.Linear(3, c), nn.Linear(c, 4)

    def forward(self, pts):
        cell = torch.floor(pts * 2).long() + 8
        key = cell[:, 0] * 256 + cell[:, 1] * 16 + cell[:, 2]
        values, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
        f = torch.relu(self.lin(pts))
        s = torch.zeros(values.shape[0], f.shape[1]).scatter_add(0, inverse.unsqueeze(1).expand(-1, f.shape[1]), f)
        return values, self.out(s / counts.unsqueeze(1).float())


class Pruned(nn.Module):
    """Tokens of a ViT pruned by score: TopK of a computed k, gathered, attended."""

    def __init__(self, c=16, rate=0.7):
        super().__init__()
        self.patch, self.score = nn.Conv2d(3, c, 4, 4), nn.Linear(c, 1)
        self.att, self.rate, self.out = nn.Linear(c, 3 * c), rate, nn.Linear(c, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        s = self.score(x).squeeze(-1)
        k: Any = torch.ceil(torch.tensor(x.shape[1]) * self.rate).long()
        _, at = torch.topk(s, k, 1)
        x = torch.gather(x, 1, at.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        q, kk, v = self.att(x).chunk(3, -1)
        return self.out((q @ kk.transpose(1, 2)).softmax(-1) @ v)


class Confident(nn.Module):
    """Detector: boxes above a threshold, the best min(n, 10), their masks from a product with prototypes."""

    def __init__(self, c=8):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.box, self.cls, self.proto = nn.Conv2d(c, 4, 1), nn.Conv2d(c, 3, 1), nn.Conv2d(c, 4, 1)
        self.coef = nn.Conv2d(c, 4, 1)

    def forward(self, x):
        f = torch.relu(self.stem(x))
        box, cls, coef = (g(f).flatten(2)[0].t() for g in (self.box, self.cls, self.coef))
        score, label = cls.sigmoid().max(-1)
        keep = torch.nonzero(score > 0.5).squeeze(1)
        score, label, box, coef = score[keep], label[keep], box[keep], coef[keep]
        k: Any = torch.minimum(torch.tensor(10), torch.tensor(score.shape[0]))
        score, at = torch.topk(score, k)
        mask = torch.einsum("nc,chw->nhw", coef[at], self.proto(f)[0]).sigmoid()
        return box[at], label[at], score, mask


class Trim(nn.Module):
    """Speech between the first and last loud frames, then resampled by a factor that the data says."""

    def __init__(self, c=8):
        super().__init__()
        self.net = nn.Conv1d(1, c, 5, padding=2)

    def forward(self, x):
        loud = (x.abs() > 0.5).long()
        first = torch.argmax(loud, 1)[0]
        last = x.shape[1] - torch.argmax(torch.flip(loud, [1]), 1)[0]
        y = x[:, first:last]
        return torch.relu(self.net(y.unsqueeze(1))), first, last


class Crop(nn.Module):
    """Segmentation, the box of its mask, the crop of the image resized to 8x8 and described."""

    def __init__(self, c=8):
        super().__init__()
        self.seg, self.net = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, c, 3, padding=1)

    def forward(self, x):
        m = (self.seg(x) > 0)[0, 0]
        ys, xs = torch.nonzero(m, as_tuple=True)
        y0, y1, x0, x1 = ys.min(), ys.max() + 1, xs.min(), xs.max() + 1
        crop = x[:, :, y0:y1, x0:x1]
        return F.interpolate(crop, size=(8, 8), mode="bilinear"), self.net(crop).mean((2, 3))


class Tacotron(nn.Module):
    """A scripted decoder: frames until the gate says stop, in a list."""

    def __init__(self, c=8, m=4, vocab=20):
        super().__init__()
        self.emb, self.enc = nn.Embedding(vocab, c), nn.LSTM(c, c, batch_first=True)
        self.dec = Decoder(c, m)
        self.post = nn.Conv1d(m, m, 5, padding=2)

    def forward(self, ids):
        memory, _ = self.enc(self.emb(ids))
        frames, gates = self.dec(memory)
        y = frames.transpose(1, 2)
        return y + self.post(y), gates


class Decoder(nn.Module):
    def __init__(self, c: int, m: int):
        super().__init__()
        self.pre, self.cell, self.q = nn.Linear(m, c), nn.Linear(3 * c, c), nn.Linear(c, c)
        self.out, self.gate = nn.Linear(2 * c, m), nn.Linear(2 * c, 1)
        self.c, self.m = c, m

    def forward(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b = memory.shape[0]
        h = torch.zeros(b, self.c)
        frame = torch.zeros(b, self.m)
        context = memory[:, 0]
        frames: list[torch.Tensor] = []
        gates: list[torch.Tensor] = []
        going = True
        while going:
            h = torch.tanh(self.cell(torch.cat([torch.relu(self.pre(frame)), context, h], 1)))
            w = torch.softmax((memory @ self.q(h).unsqueeze(2)).squeeze(2), 1)
            context = (w.unsqueeze(1) @ memory).squeeze(1)
            hc = torch.cat([h, context], 1)
            frame = self.out(hc)
            gate = torch.sigmoid(self.gate(hc) * 5)
            frames.append(frame)
            gates.append(gate)
            going = bool((gate.sum() + 0.02 * len(frames)) < 0.9) and len(frames) < 40
        return torch.stack(frames, 1), torch.cat(gates, 1)


class RNNT(nn.Module):
    """Greedy transducer: for each frame symbols until blank, three at most."""

    def __init__(self, c=8, v=6):
        super().__init__()
        self.enc = nn.GRU(4, c, batch_first=True)
        self.dec = Transducer(c, v)

    def forward(self, x):
        return self.dec(self.enc(x)[0][0])


class Transducer(nn.Module):
    def __init__(self, c: int, v: int):
        super().__init__()
        self.emb, self.cell, self.joint = nn.Embedding(v, c), nn.Linear(2 * c, c), nn.Linear(2 * c, v)
        self.c = c

    def forward(self, f: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(1, self.c)
        tokens = torch.zeros(1, dtype=torch.long)
        for t in range(f.shape[0]):
            for _s in range(3):
                g = torch.tanh(self.cell(torch.cat([self.emb(tokens[-1:]), h], 1)))
                k = torch.argmax(self.joint(torch.cat([f[t : t + 1], g], 1)), 1)
                if bool((k != 0).all()):
                    tokens = torch.cat([tokens, k])
                    h = g
        return tokens


class Beam(nn.Module):
    """Scripted beam search over a recurrent language model; hypotheses grow by a column a step."""

    def __init__(self, c=8, v=9):
        super().__init__()
        self.dec = BeamSearch(c, v)

    def forward(self, start, n):
        return self.dec(start, n)


class BeamSearch(nn.Module):
    def __init__(self, c: int, v: int):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(v, c), nn.Linear(2 * c, c), nn.Linear(c, v)
        self.c, self.v = c, v

    def forward(self, start: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = start.reshape(1, 1).expand(3, 1)
        h = torch.zeros(3, self.c)
        score = torch.tensor([0.0, -1e9, -1e9])
        for _i in range(int(n)):
            h = torch.tanh(self.cell(torch.cat([self.emb(tokens[:, -1]), h], 1)))
            p = torch.log_softmax(self.out(h), 1) + score.unsqueeze(1)
            score, at = torch.topk(p.reshape(-1), 3)
            beam = at // self.v
            tokens = torch.cat([tokens[beam], (at % self.v).unsqueeze(1)], 1)
            h = h[beam]
        return tokens, score


class Cached(nn.Module):
    """Greedy decoding with a cache of keys and values that grows."""

    def __init__(self, c=8, v=9):
        super().__init__()
        self.dec = CachedDecoder(c, v)

    def forward(self, ids):
        return self.dec(ids)


class CachedDecoder(nn.Module):
    def __init__(self, c: int, v: int):
        super().__init__()
        self.emb, self.q, self.k, self.v, self.out = (
            nn.Embedding(v, c),
            nn.Linear(c, c),
            nn.Linear(c, c),
            nn.Linear(c, c),
            nn.Linear(c, v),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        k, v = self.k(x), self.v(x)
        tokens = ids
        token = ids[:, -1:]
        for _i in range(12):
            if bool((token != 0).all()):
                q = self.emb(token)
                k = torch.cat([k, self.k(q)], 1)
                v = torch.cat([v, self.v(q)], 1)
                y = torch.softmax(self.q(q) @ k.transpose(1, 2), -1) @ v
                token = torch.argmax(self.out(y), -1)
                tokens = torch.cat([tokens, token], 1)
        return tokens
