"""llama.cpp with a mixture of experts of random weights: tokens, one after the other.

Each layer has 32 experts of 8.65 MB, of which each token needs four. llama.cpp maps the file.
"""
import os
import zlib
import llama_cpp
import numpy
from common import Dice, main, progress, scaled

LAYERS = 12
EXPERTS = 32
USED_EXPERTS = 4
EMBEDDING = 1024
FEED_FORWARD = 1408
HEADS = 16
VOCABULARY = 1000
TOKENS = 32
PROMPT = [1, 300, 400, 500, 600]
# The next token is one of so many of the most likely ones: always the first would soon repeat itself.
CHOICES = 20
# Weights are pieces of one array of random numbers: making them all takes longer than writing them.
BASE_NUMBERS = 1 << 22


def path(dir):
    return os.path.join(dir, "model.gguf")


def vocabulary(writer, gguf):
    bytes_of = [b"<0x%02X>" % byte for byte in range(256)]
    tokens = [b"<unk>", b"<s>", b"</s>"] + bytes_of
    tokens += [b"\xe2\x96\x81t%d" % number for number in range(len(tokens), VOCABULARY)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(bytes_of)
    kinds += [gguf.TokenType.NORMAL] * (VOCABULARY - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def tensors(layers, experts):
    """Names, shapes and the standard deviations of their numbers; with None all numbers are 1."""
    yield "token_embd", (VOCABULARY, EMBEDDING), "f2", 1.0
    yield "output_norm", (EMBEDDING,), "f4", None
    yield "output", (VOCABULARY, EMBEDDING), "f2", 0.02
    for layer in range(layers):
        block = f"blk.{layer}."
        yield block + "attn_norm", (EMBEDDING,), "f4", None
        yield block + "ffn_norm", (EMBEDDING,), "f4", None
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield block + name, (EMBEDDING, EMBEDDING), "f2", 0.02
        yield block + "ffn_gate_inp", (experts, EMBEDDING), "f4", 0.3
        yield block + "ffn_gate_exps", (experts, FEED_FORWARD, EMBEDDING), "f2", 0.02
        yield block + "ffn_up_exps", (experts, FEED_FORWARD, EMBEDDING), "f2", 0.02
        yield block + "ffn_down_exps", (experts, EMBEDDING, FEED_FORWARD), "f2", 0.02


class Numbers:
    """Random numbers of any deviation."""

    def __init__(self):
        self.random = numpy.random.Generator(numpy.random.PCG64(1))
        self.base = self.random.standard_normal(BASE_NUMBERS, dtype="f4")
        self.of = {}

    def array(self, shape, kind, deviation):
        many = int(numpy.prod(shape))
        if deviation is None:
            return numpy.ones(shape, kind)
        base = self.of.get((kind, deviation))
        if base is None:
            base = self.of[kind, deviation] = (self.base * deviation).astype(kind)
        # Each matrix begins somewhere else.
        made = numpy.empty(many, kind)
        for first in range(0, many, EMBEDDING * FEED_FORWARD):
            part = made[first : first + EMBEDDING * FEED_FORWARD]
            begin = int(self.random.integers(0, BASE_NUMBERS - len(part)))
            part[:] = base[begin : begin + len(part)]
        return made.reshape(shape)


def make(dir, percent):
    import gguf

    layers = scaled(LAYERS, percent)
    experts = min(EXPERTS, scaled(LAYERS * EXPERTS, percent, USED_EXPERTS))
    writer = gguf.GGUFWriter(path(dir), "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(USED_EXPERTS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    vocabulary(writer, gguf)
    all = list(tensors(layers, experts))
    for name, shape, kind, _ in all:
        dtype = numpy.dtype(kind)
        writer.add_tensor_info(name + ".weight", shape, dtype, int(numpy.prod(shape)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    numbers = Numbers()
    # Written one by one: all of them together would need as much memory as the file is large.
    for done, (_, shape, kind, deviation) in enumerate(all, 1):
        writer.write_tensor_data(numbers.array(shape, kind, deviation))
        progress(done, len(all))
    writer.close()


def run(dir, percent):
    threads = min(len(os.sched_getaffinity(0)), 8)
    options = dict(n_ctx=256, n_batch=32, n_threads=threads, n_threads_batch=threads)
    model = llama_cpp.Llama(path(dir), use_mmap=True, verbose=False, seed=1, **options)
    model.eval(PROMPT)
    # From here on each line is a token, which the lab counts.
    print("prompt", len(PROMPT), flush=True)
    dice = Dice(7)
    for _ in range(TOKENS):
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        logits = numpy.ctypeslib.as_array(logits, (VOCABULARY,)).copy()
        token = int(numpy.argsort(logits, kind="stable")[-1 - dice.below(CHOICES)])
        model.eval([token])
        # A wrong byte of a weight need not change a token, but changes these numbers.
        print(token, f"{zlib.crc32(logits.tobytes()):08x}", flush=True)


main(make=make, run=run)
