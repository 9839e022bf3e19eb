"""Trains or serves a known model with PyTorch, for the traces of `cargo xtask trace-models`.

Arguments: the model, and train or infer. The sizes are those of the papers:

- resnet50: He et al., 2015. 224 × 224 pixels.
- mobilenet_v2: Sandler et al., 2018. 224 × 224 pixels.
- bert_base: Devlin et al., 2018. 128 words.
- wav2vec2_base (speech): Baevski et al., 2020. 5 seconds of sound.
- decoder: to train GPT-2 (Radford et al., 2019; 124 million weights), 512 words; to serve Llama 2
  (Touvron et al., 2023; 7 billion weights), a prompt of 128 words and 16 further ones.

Training has mixed precision (bfloat16) and AdamW, and reads each fifth loss. Serving has weights of
bfloat16, and reads each answer. After the warm-up, the script pauses for a second, and then works.
`cargo xtask trace-models` keeps the calls after the pause.

Kernels of the simulated GPU compute nothing. So the script uses no value that it reads back.
"""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WARM_UP_STEPS = 3
STEPS = 10
READ_EVERY = 5
# The pause between the warm-up and the work, s.
PAUSE_S = 1
RECORDED_WITHIN_S = 0.2
CLASSES = 1000


def convolution(ins, outs, size, stride=1, groups=1, activation=nn.ReLU):
    padding = size // 2
    return nn.Sequential(
        nn.Conv2d(ins, outs, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outs), activation()
    )


class Residual(nn.Module):
    """Adds the input, or its projection, to the result of the body."""

    def __init__(self, body, past, activation):
        super().__init__()
        self.body, self.past, self.activation = body, past, activation

    def forward(self, x):
        return self.activation(self.body(x) + self.past(x))


def classifier(parts, channels):
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def resnet50():
    parts, channels = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, first_stride, blocks in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            body = nn.Sequential(
                convolution(channels, width, 1),
                convolution(width, width, 3, stride),
                convolution(width, 4 * width, 1, activation=nn.Identity),
            )
            past = nn.Identity()
            if block == 0:
                past = convolution(channels, 4 * width, 1, stride, activation=nn.Identity)
            parts.append(Residual(body, past, nn.ReLU()))
            channels = 4 * width
    return classifier(parts, channels)


def mobilenet_v2():
    parts, channels = [convolution(3, 32, 3, 2, activation=nn.ReLU6)], 32
    for expansion, outs, blocks, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(blocks):
            stride, wide = first_stride if block == 0 else 1, expansion * channels
            body = [convolution(channels, wide, 1, activation=nn.ReLU6)] if expansion > 1 else []
            body.append(convolution(wide, wide, 3, stride, groups=wide, activation=nn.ReLU6))
            body = nn.Sequential(*body, convolution(wide, outs, 1, activation=nn.Identity))
            is_residual = stride == 1 and channels == outs
            parts.append(Residual(body, nn.Identity(), nn.Identity()) if is_residual else body)
            channels = outs
    parts.append(convolution(channels, 1280, 1, activation=nn.ReLU6))
    return classifier(parts, 1280)


class Encoder(nn.Module):
    """Layers of attention over words, with a head that gives scores for each word."""

    def __init__(self, embedding, scores, is_causal=False, layers=12, width=768, heads=12):
        super().__init__()
        self.embedding, self.is_causal = embedding, is_causal
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=is_causal
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, scores)

    def forward(self, x):
        x = self.embedding(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.is_causal else None
        return self.scores(self.layers(x, mask=mask, is_causal=self.is_causal))


class Words(nn.Module):
    """The embeddings of words and of their places."""

    def __init__(self, words, places, width=768):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)

    def forward(self, x):
        return self.words(x) + self.places(torch.arange(x.shape[1]))


class Sound(nn.Module):
    """Seven convolutions over samples of sound, which give a vector for each 20 ms."""

    def __init__(self, width=768):
        super().__init__()
        parts, channels = [], 1
        for size, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
            parts.append(nn.Conv1d(channels, 512, size, stride, bias=False))
            parts += [nn.GroupNorm(512, 512)] if channels == 1 else []
            parts.append(nn.GELU())
            channels = 512
        self.parts = nn.Sequential(*parts)
        self.width = nn.Linear(512, width)
        self.places = nn.Conv1d(width, width, 128, padding=64, groups=16)

    def forward(self, x):
        x = self.width(self.parts(x).transpose(1, 2))
        return x + functional.gelu(self.places(x.transpose(1, 2))[..., :-1].transpose(1, 2))


class Llama(nn.Module):
    """A layer of Llama 2, with the keys and values of earlier words."""

    def __init__(self, places, width=4096, heads=32, hidden=11008):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.in_, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.gate = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.register_buffer("turns", torch.ones(2, places, width // heads))
        self.register_buffer("cache", torch.empty(2, 1, heads, places, width // heads))

    def turned(self, x, at):
        cosines, sines = self.turns[:, at : at + x.shape[2]]
        half = x.shape[-1] // 2
        return x * cosines + torch.cat((-x[..., half:], x[..., :half]), -1) * sines

    def forward(self, x, at):
        batch, length, width = x.shape
        parts = self.in_(self.norms[0](x)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        queries, keys, values = parts.unbind(2)
        end = at + length
        self.cache[0, :, :, at:end], self.cache[1, :, :, at:end] = self.turned(keys, at), values
        keys, values = self.cache[:, :, :, :end]
        mixed = functional.scaled_dot_product_attention(
            self.turned(queries, at), keys, values, is_causal=length > 1
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Chat(nn.Module):
    """Llama 2 with 7 billion weights. Gives the words after a prompt, one by one."""

    WORDS, PROMPT, ANSWER, WIDTH = 32000, 128, 16, 4096

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        self.layers = nn.ModuleList(Llama(self.PROMPT + self.ANSWER) for _ in range(32))
        self.norm, self.scores = nn.RMSNorm(self.WIDTH), nn.Linear(self.WIDTH, self.WORDS, bias=False)

    def forward(self, words):
        at = 0
        for _ in range(self.ANSWER):
            x = self.words(words)
            for layer in self.layers:
                x = layer(x, at)
            at += words.shape[1]
            words = self.scores(self.norm(x[:, -1:])).argmax(-1)
            # A server looks whether the answer is at its end.
            words.item()
        return words


def images(batch):
    return torch.randn(batch, 3, 224, 224, device="cpu").pin_memory()


def words(batch, length):
    return torch.zeros(batch, length, dtype=torch.long, device="cpu").pin_memory()


# For each model: how to make it, an input, and the inputs of a batch in training and in serving.
MODELS = {
    "resnet50": (resnet50, images, 32, 8),
    "mobilenet_v2": (mobilenet_v2, images, 32, 8),
    "bert_base": (lambda: Encoder(Words(30522, 512), 30522), lambda batch: words(batch, 128), 32, 8),
    "wav2vec2_base": (
        lambda: Encoder(Sound(), 32),
        lambda batch: torch.randn(batch, 1, 80_000, device="cpu").pin_memory(),
        8,
        1,
    ),
    "decoder": (lambda: Encoder(Words(50257, 1024), 50257, is_causal=True), lambda batch: words(batch, 512), 8, None),
}


def training(model):
    build, batch_of, batch, _ = MODELS[model]
    net, inputs = build(), batch_of(batch)
    optimizer = torch.optim.AdamW(net.parameters())
    # Any labels do, because kernels compute nothing. Each image or word has a label.
    labels = torch.zeros(net(inputs.cuda()).shape[:-1], dtype=torch.long)

    def step(done):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = net(inputs.cuda(non_blocking=True))
            loss = functional.cross_entropy(scores.flatten(0, -2).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        if (done + 1) % READ_EVERY == 0:
            loss.item()

    return step


def serving(model):
    build, batch_of, _, batch = MODELS[model]
    if model == "decoder":
        build, batch_of, batch = Chat, lambda batch: words(batch, Chat.PROMPT), 1
    torch.set_default_dtype(torch.bfloat16)
    net, inputs = build().eval(), batch_of(batch)

    def step(_done):
        with torch.inference_mode():
            net(inputs.cuda(non_blocking=True)).cpu()

    return step


def main():
    model, work = sys.argv[1:]
    torch.set_default_device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    # The stand-in for cuDNN has no attention. PyTorch has attention kernels of its own.
    torch.backends.cuda.enable_cudnn_sdp(False)
    step = {"train": training, "infer": serving}[work](model)
    steps = 2 if (model, work) == ("decoder", "infer") else STEPS
    for done in range(WARM_UP_STEPS):
        step(done)
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    for done in range(steps):
        step(done)
    torch.cuda.synchronize()
    # The interposer writes the last calls within some milliseconds.
    time.sleep(RECORDED_WITHIN_S)
    # Without it PyTorch aborts now and then, in Python's finalisation after backward().
    os._exit(0)


if __name__ == "__main__":
    main()
