"""Small networks of speech by architecture, with random weights: Piper (VITS), Matcha-TTS and Kokoro (StyleTTS 2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def sequence_mask(length, size=None):
    if size is None:
        size = length.max()
    x = torch.arange(size, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


def generate_path(duration, mask):
    """duration [b,1,t_x], mask [b,1,t_y,t_x] (as VITS has it)"""
    b, _, t_y, t_x = mask.shape
    cum = torch.cumsum(duration, -1)
    path = sequence_mask(cum.view(b * t_x), t_y).to(mask.dtype).view(b, t_x, t_y)
    path = path - F.pad(path, (0, 0, 1, 0, 0, 0))[:, :-1]
    return path.unsqueeze(1).transpose(2, 3) * mask


class Attention(nn.Module):
    """Relative-position attention of VITS' encoder."""

    def __init__(self, c, heads=2, window=4):
        super().__init__()
        self.h, self.k, self.w = heads, c // heads, window
        self.q, self.kk, self.v, self.o = (nn.Conv1d(c, c, 1) for _ in range(4))
        self.rel_k = nn.Parameter(torch.randn(1, 2 * window + 1, self.k) * self.k**-0.5)
        self.rel_v = nn.Parameter(torch.randn(1, 2 * window + 1, self.k) * self.k**-0.5)

    def rel(self, r, n):
        pad = max(n - (self.w + 1), 0)
        start = max((self.w + 1) - n, 0)
        if pad > 0:
            r = F.pad(r, (0, 0, pad, pad, 0, 0))
        return r[:, start : start + 2 * n - 1]

    def to_abs(self, x):
        b, h, n, _ = x.size()
        x = F.pad(x, (0, 1))
        x = F.pad(x.view(b, h, n * 2 * n), (0, n - 1))
        return x.view(b, h, n + 1, 2 * n - 1)[:, :, :n, n - 1 :]

    def to_rel(self, x):
        b, h, n, _ = x.size()
        x = F.pad(x, (0, n - 1)).view(b, h, n * n + n * (n - 1))
        return F.pad(x, (n, 0)).view(b, h, n, 2 * n)[:, :, :, 1:]

    def forward(self, x, mask):
        b, c, n = x.size()
        q, k, v = (f(x).view(b, self.h, self.k, n).transpose(2, 3) for f in (self.q, self.kk, self.v))
        s = (q / math.sqrt(self.k)) @ k.transpose(-2, -1)
        s = s + self.to_abs((q / math.sqrt(self.k)) @ self.rel(self.rel_k, n).unsqueeze(0).transpose(-2, -1))
        p = s.masked_fill(mask.unsqueeze(1) == 0, -1e4).softmax(-1)
        y = p @ v + self.to_rel(p) @ self.rel(self.rel_v, n).unsqueeze(0)
        return self.o(y.transpose(2, 3).contiguous().view(b, c, n))


class LayerNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n = nn.LayerNorm(c)

    def forward(self, x):
        return self.n(x.transpose(1, -1)).transpose(1, -1)


class Encoder(nn.Module):
    def __init__(self, vocab, c, window=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, c)
        self.att, self.n1, self.n2 = Attention(c, window=window), LayerNorm(c), LayerNorm(c)
        self.f1, self.f2 = nn.Conv1d(c, 2 * c, 3, padding=1), nn.Conv1d(2 * c, c, 3, padding=1)
        self.proj = nn.Conv1d(c, 2 * c, 1)
        self.c = c

    def forward(self, x, lengths):
        x = (self.emb(x) * math.sqrt(self.c)).transpose(1, -1)
        m = sequence_mask(lengths, x.size(2)).unsqueeze(1).to(x.dtype)
        a = m.unsqueeze(2) * m.unsqueeze(-1)
        x = x * m
        x = self.n1(x + self.att(x, a.squeeze(1)))
        x = self.n2(x + self.f2(torch.relu(self.f1(x * m)) * m) * m) * m
        mean, logs = torch.split(self.proj(x) * m, self.c, dim=1)
        return x, mean, logs, m


class Durations(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.n1, self.p = nn.Conv1d(c, c, 3, padding=1), LayerNorm(c), nn.Conv1d(c, 1, 1)

    def forward(self, x, m):
        return self.p(self.n1(torch.relu(self.c1(x * m))) * m) * m


class WN(nn.Module):
    def __init__(self, c, layers=2):
        super().__init__()
        self.c = c
        self.i = nn.ModuleList(nn.Conv1d(c, 2 * c, 3, padding=1 + k, dilation=1 + k) for k in range(layers))
        self.r = nn.ModuleList(nn.Conv1d(c, 2 * c, 1) for _ in range(layers))

    def forward(self, x, m):
        result = torch.zeros_like(x)
        for i, r in zip(self.i, self.r, strict=False):
            a = i(x)
            y = r(torch.tanh(a[:, : self.c]) * torch.sigmoid(a[:, self.c :]))
            x = (x + y[:, : self.c]) * m
            result = result + y[:, self.c :]
        return result * m


class Coupling(nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.pre, self.wn, self.post = nn.Conv1d(c // 2, h, 1), WN(h), nn.Conv1d(h, c // 2, 1)

    def forward(self, x, m):
        x0, x1 = x.chunk(2, 1)
        mean = self.post(self.wn(self.pre(x0) * m, m)) * m
        return torch.cat([x0, (x1 - mean) * m], 1)


class HiFiGAN(nn.Module):
    res: Any

    def __init__(self, c, h=16, rates=(4, 2)):
        super().__init__()
        self.pre = nn.Conv1d(c, h, 7, padding=3)
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for r in rates:
            self.ups.append(nn.ConvTranspose1d(h, h // 2, 2 * r, r, padding=r // 2))
            h //= 2
            self.res.append(
                nn.ModuleList(
                    nn.Conv1d(h, h, k, dilation=d, padding=(k - 1) * d // 2) for k, d in ((3, 1), (3, 3), (5, 2))
                )
            )
        self.post = nn.Conv1d(h, 1, 7, padding=3, bias=False)

    def forward(self, x):
        x = self.pre(x)
        for upsample, res in zip(self.ups, self.res, strict=False):
            x = upsample(F.leaky_relu(x, 0.1))
            x = torch.stack([x + r(F.leaky_relu(x, 0.1)) for r in res]).mean(0)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Piper(nn.Module):
    """input [b,t], input_lengths [b], scales [3] (noise, length, noise of durations)"""

    def __init__(self, c=16, vocab=20):
        super().__init__()
        self.enc, self.dp = Encoder(vocab, c), Durations(c)
        self.flows = nn.ModuleList(Coupling(c, c) for _ in range(2))
        self.dec = HiFiGAN(c)

    def forward(self, input, input_lengths, scales):
        x, m_p, logs_p, x_mask = self.enc(input, input_lengths)
        w = torch.exp(self.dp(x, x_mask)) * x_mask * scales[1]
        w_ceil = torch.ceil(w)
        y_lengths = torch.clamp_min(torch.sum(w_ceil, [1, 2]), 1).long()
        y_mask = sequence_mask(y_lengths, y_lengths.max()).unsqueeze(1).type_as(x_mask)
        attn_mask = x_mask.unsqueeze(2) * y_mask.unsqueeze(-1)
        attn = generate_path(w_ceil, attn_mask)
        m_p = torch.matmul(attn.squeeze(1), m_p.transpose(1, 2)).transpose(1, 2)
        logs_p = torch.matmul(attn.squeeze(1), logs_p.transpose(1, 2)).transpose(1, 2)
        z = m_p + torch.randn_like(m_p) * torch.exp(logs_p) * scales[0]
        for f in self.flows:
            z = f(torch.flip(z, [1]), y_mask)
        return self.dec((z * y_mask)[:, :, :None])


class Block1D(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.c, self.n = nn.Conv1d(a, b, 3, padding=1), nn.GroupNorm(4, b)

    def forward(self, x, m):
        return F.mish(self.n(self.c(x * m))) * m


class Resnet1D(nn.Module):
    def __init__(self, a, b, t):
        super().__init__()
        self.b1, self.b2, self.t, self.r = Block1D(a, b), Block1D(b, b), nn.Linear(t, b), nn.Conv1d(a, b, 1)

    def forward(self, x, m, t):
        return self.b2(self.b1(x, m) + self.t(F.mish(t)).unsqueeze(-1), m) + self.r(x * m)


class UNet1D(nn.Module):
    def __init__(self, c, h=16):
        super().__init__()
        self.h = h
        self.time = nn.Sequential(nn.Linear(h, h), nn.SiLU(), nn.Linear(h, h))
        self.d1, self.d2 = Resnet1D(2 * c, h, h), Resnet1D(h, h, h)
        self.down, self.up = nn.Conv1d(h, h, 3, 2, 1), nn.ConvTranspose1d(h, h, 4, 2, 1)
        self.q, self.k, self.v, self.o = (nn.Linear(h, h) for _ in range(4))
        self.mid, self.u1, self.u2 = Resnet1D(h, h, h), Resnet1D(2 * h, h, h), Resnet1D(2 * h, h, h)
        self.end, self.out = Block1D(h, h), nn.Conv1d(h, c, 1)

    def forward(self, x, m, mu, t):
        e = torch.exp(torch.arange(self.h // 2).float() * -(math.log(10000) / (self.h // 2 - 1)))
        e = 1000 * t.unsqueeze(-1) * e.unsqueeze(0)
        t = self.time(torch.cat((e.sin(), e.cos()), -1))
        x = torch.cat([x, mu], 1)
        x1 = self.d1(x, m, t)
        m2 = m[:, :, ::2]
        x2 = self.d2(self.down(x1 * m), m2, t)
        x = self.mid(x2, m2, t)
        y = x.transpose(1, 2)
        q, k, v = (f(y).view(y.shape[0], -1, 2, self.h // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=m2.unsqueeze(1) == 1)
        x = x + self.o(a.transpose(1, 2).reshape(y.shape[0], -1, self.h)).transpose(1, 2)
        x = self.u1(torch.cat([x, x2], 1), m2, t)
        x = self.up(x * m2)
        x = self.u2(torch.cat([x[:, :, : m.shape[-1]], x1], 1), m, t)
        return self.out(self.end(x, m) * m) * m


class Matcha(nn.Module):
    """x [b,t], x_lengths [b], scales [2] (temperature, length): mel [b,c,n], mel_lengths [b]"""

    def __init__(self, c=16, vocab=20, steps=2):
        super().__init__()
        self.enc, self.dp, self.unet, self.steps = Encoder(vocab, c), Durations(c), UNet1D(c), steps

    def forward(self, x, x_lengths, scales):
        h, mu, _, x_mask = self.enc(x, x_lengths)
        w = torch.exp(self.dp(h, x_mask)) * x_mask
        w_ceil = torch.ceil(w) * scales[1]
        y_lengths = torch.clamp_min(torch.sum(w_ceil, [1, 2]), 1).long()
        y_max = y_lengths.max()
        size = torch.ceil(y_max / 4) * 4
        size = size.int() if torch.onnx.is_in_onnx_export() else size.int().item()
        y_mask = sequence_mask(y_lengths, size).unsqueeze(1).to(x_mask.dtype)
        attn_mask = x_mask.unsqueeze(-1) * y_mask.unsqueeze(2)
        attn = self.path(w_ceil.squeeze(1), attn_mask.squeeze(1))
        mu_y = torch.matmul(attn.transpose(1, 2), mu.transpose(1, 2)).transpose(1, 2)
        z = torch.randn_like(mu_y) * scales[0]
        span = torch.linspace(0, 1, self.steps + 1)
        t, dt = span[0], span[1] - span[0]
        for step in range(1, self.steps + 1):
            z = z + dt * self.unet(z, y_mask, mu_y, t.expand(x.shape[0]))
            t = t + dt
            if step < self.steps:
                dt = span[step + 1] - t
        return z[:, :, :y_max], y_lengths

    @staticmethod
    def path(duration, mask):
        b, t_x, t_y = mask.shape
        cum = torch.cumsum(duration, 1)
        path = sequence_mask(cum.view(b * t_x), t_y).to(mask.dtype).view(b, t_x, t_y)
        return (path - F.pad(path, (0, 0, 1, 0, 0, 0))[:, :-1]) * mask


class AdaIN(nn.Module):
    def __init__(self, s, c):
        super().__init__()
        self.n, self.f = nn.InstanceNorm1d(c, affine=True), nn.Linear(s, 2 * c)

    def forward(self, x, s):
        g, b = torch.chunk(self.f(s).unsqueeze(-1), 2, dim=1)
        return (1 + g) * self.n(x) + b


class Snake(nn.Module):
    """A residual block of iSTFTNet: AdaIN, Snake, convolution."""

    def __init__(self, s, c, k=3):
        super().__init__()
        self.a = nn.ModuleList(AdaIN(s, c) for _ in range(2))
        self.c = nn.ModuleList(nn.Conv1d(c, c, k, padding=(k // 2) * d, dilation=d) for d in (1, 3))
        self.alpha = nn.ParameterList(nn.Parameter(torch.ones(1, c, 1)) for _ in range(2))

    def forward(self, x, s):
        for n, c, a in zip(self.a, self.c, self.alpha, strict=False):
            y = n(x, s)
            x = x + c(y + (1 / a) * torch.sin(a * y) ** 2)
        return x


class STFT(nn.Module):
    """Kokoro's CustomSTFT: convolutions in place of FFTs."""

    fr: torch.Tensor
    fi: torch.Tensor
    br: torch.Tensor
    bi: torch.Tensor

    def __init__(self, n=8, hop=2):
        super().__init__()
        self.n, self.hop = n, hop
        w = torch.hann_window(n, periodic=True)
        k, t = torch.arange(n // 2 + 1), torch.arange(n)
        a = 2 * math.pi * torch.outer(k.float(), t.float()) / n
        self.register_buffer("fr", (torch.cos(a) * w).unsqueeze(1))
        self.register_buffer("fi", (-torch.sin(a) * w).unsqueeze(1))
        self.register_buffer("br", (torch.cos(a) * w / n).unsqueeze(1))
        self.register_buffer("bi", (torch.sin(a) * w / n).unsqueeze(1))

    def transform(self, x):
        x = F.pad(x, (self.n // 2, self.n // 2), mode="replicate").unsqueeze(1)
        re, im = F.conv1d(x, self.fr, stride=self.hop), F.conv1d(x, self.fi, stride=self.hop)
        phase = torch.atan2(im, re)
        phase = torch.where((im == 0) & (re < 0), torch.full_like(phase, math.pi), phase)
        mag = torch.sqrt(re**2 + im**2 + 1e-14)
        return mag, torch.cos(phase) * mag  # a phase near pi may as well be near -pi

    def inverse(self, mag, phase, length=None):
        re, im = mag * torch.cos(phase), mag * torch.sin(phase)
        x = F.conv_transpose1d(re, self.br, stride=self.hop) - F.conv_transpose1d(im, self.bi, stride=self.hop)
        return x[..., self.n // 2 : -(self.n // 2)]


class Kokoro(nn.Module):
    """input_ids [1,t], style [1,2*s], speed [1]: waveform [n], durations [t]"""

    def __init__(self, c=16, vocab=20, s=8, max_duration=10):
        super().__init__()
        self.s, self.c = s, c
        self.bq, self.bk, self.bv, self.bo, self.bn = *(nn.Linear(c, c) for _ in range(4)), nn.LayerNorm(c)
        self.emb = nn.Embedding(vocab, c)
        self.enc = nn.LSTM(c + s, c // 2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(c + s, c // 2, batch_first=True, bidirectional=True)
        self.dur = nn.Linear(c, max_duration)
        self.shared = nn.LSTM(c + s, c // 2, batch_first=True, bidirectional=True)
        self.f0, self.f0up, self.f0p = (
            Snake(s, c),
            nn.ConvTranspose1d(c, c, 3, 2, 1, output_padding=1, groups=c),
            nn.Conv1d(c, 1, 1),
        )
        self.noise, self.noisep = Snake(s, c), nn.Conv1d(c, 1, 1)
        self.tcnn = nn.Sequential(nn.Conv1d(c, c, 5, padding=2), nn.LeakyReLU(0.2))
        self.tlstm = nn.LSTM(c, c // 2, batch_first=True, bidirectional=True)
        self.f0conv, self.nconv = nn.Conv1d(1, 1, 3, 2, 1), nn.Conv1d(1, 1, 3, 2, 1)
        self.decode = nn.Conv1d(c + 2, c, 3, padding=1)
        self.dres = Snake(s, c)
        self.up = nn.ConvTranspose1d(c, c // 2, 8, 4, padding=2)
        self.nconvs, self.res = nn.Conv1d(10, c // 2, 1), Snake(s, c // 2)
        self.post = nn.Conv1d(c // 2, 10, 7, padding=3)
        self.stft = STFT()
        self.linear = nn.Linear(9, 1)
        self.rate = 8  # samples per frame of f0
        self.reflection = nn.ReflectionPad1d((1, 0))

    def source(self, f0):
        f0 = F.interpolate(f0[:, None], scale_factor=float(self.rate)).transpose(1, 2)
        fn = f0 * torch.arange(1, 10, dtype=torch.float32).view(1, 1, 9)
        rad = (fn / 24000) % 1
        rad = F.interpolate(rad.transpose(1, 2), scale_factor=1 / self.rate, mode="linear").transpose(1, 2)
        phase = torch.cumsum(rad, 1) * 2 * math.pi
        phase = F.interpolate(
            phase.transpose(1, 2) * self.rate, scale_factor=float(self.rate), mode="linear"
        ).transpose(1, 2)
        uv = (f0 > 10).float()
        sine = torch.sin(phase) * 0.1 * uv + torch.randn_like(phase) * 0
        return torch.tanh(self.linear(sine)).transpose(1, 2).squeeze(1)

    def forward(self, input_ids, style, speed):
        s, r = style[:, self.s :], style[:, : self.s]
        d = self.emb(input_ids)
        q, k, v = (f(d).view(1, -1, 2, self.c // 2).transpose(1, 2) for f in (self.bq, self.bk, self.bv))
        d = self.bn(d + self.bo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, -1, self.c)))
        d = torch.cat([d, s.unsqueeze(1).expand(-1, d.shape[1], -1)], -1)
        d, _ = self.enc(d)
        d = torch.cat([d, s.unsqueeze(1).expand(-1, d.shape[1], -1)], -1)
        x, _ = self.lstm(d)
        duration = torch.sigmoid(self.dur(x)).sum(-1) / speed
        n = torch.round(duration).clamp(min=1).long().squeeze(0)
        indices = torch.repeat_interleave(torch.arange(input_ids.shape[1]), n)
        aln = torch.zeros((input_ids.shape[1], indices.shape[0]))
        aln[indices, torch.arange(indices.shape[0])] = 1
        aln = aln.unsqueeze(0)
        en = d.transpose(-1, -2) @ aln
        h, _ = self.shared(en.transpose(-1, -2))
        h = h.transpose(-1, -2)
        f0 = self.f0p(self.f0up(self.f0(h, s))).squeeze(1) * 300
        noise = self.noisep(F.interpolate(self.noise(h, s), scale_factor=2.0, mode="nearest")).squeeze(1)
        t = self.tcnn(self.emb(input_ids).transpose(1, 2))
        t, _ = self.tlstm(t.transpose(1, 2))
        asr = t.transpose(-1, -2) @ aln
        y = self.decode(torch.cat([asr, self.f0conv(f0.unsqueeze(1)), self.nconv(noise.unsqueeze(1))], 1))
        y = self.dres(y, r)
        har = torch.cat(self.stft.transform(self.source(f0)), 1)
        y = F.interpolate(y, scale_factor=2.0)
        y = self.reflection(self.up(F.leaky_relu(y, 0.1)))
        y = self.res(y + self.nconvs(har), r)
        y = self.post(F.leaky_relu(y))
        return self.stft.inverse(torch.exp(y[:, :5]), torch.sin(y[:, 5:])).squeeze(), n
