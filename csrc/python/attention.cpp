#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/worker.hpp"
#include "python/arrays.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using attention::Worker;

// What tensor.data_ptr() says. An exchange by DLPack would cost microseconds a call, several calls a layer.
using Address = std::uintptr_t;

template <typename T = std::byte>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

void bind_attention(nb::module_& m) {
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;

  nb::class_<Worker>(m, "AttentionWorker", nb::is_final(),
                     R"(Decode attention over index lists into a KV arena that belongs to the caller.

dtype is float32, bfloat16 or float16, of everything that is passed by address. threads: how many cores compute,
this thread's included while it waits; 0 for all that the process may use. isa forces an instruction set
(baseline, avx2, avx512, avx512_bf16, amx_bf16, neon_bf16); "" takes $LAMINA_ISA or the best one there is. latent: a
value is the first so many numbers of its key and stored once with it, wherever values are given their address is
that of the keys, and outputs are so wide instead of head_dim; 0 where values are separate. prefetch: the cache into which it fetches what it
reads next, none, l1, l2, both, short or slots; "" takes $LAMINA_PREFETCH or what is best on this processor. kv_dtype: how the
arena holds keys and values, auto for dtype, fp8 for float8_e4m3fn, int8 for whole numbers times a float32 of each key
and value; finish() and append() round, and attention is to what is stored, the newest token's as well.

An iteration is plan(), and then for each layer begin() as soon as the queries are there and finish() when the
new tokens' keys and values are. Every address must be of contiguous numbers that stay where they are until the
call returns, and begin()'s until finish() has. Calls release the GIL while they compute. Not for use by two
threads at once. Results do not depend on `threads`, to the last bit, nor on the rest of the batch.)")
      .def(
          "__init__",
          [](Worker* self, const std::string& dtype, int heads, int kv_heads, int head_dim, int threads,
             const std::string& isa, int latent, const std::string& prefetch, const std::string& kv_dtype) {
            new (self) Worker(attention::dtype_named(dtype), {heads, kv_heads, head_dim, latent}, threads,
                              isa, prefetch, attention::stored_named(kv_dtype));
          },
          "dtype"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "threads"_a = 0, "isa"_a = "", "latent"_a = 0,
          "prefetch"_a = "", "kv_dtype"_a = "auto")
      .def(
          "add_layer",
          [](Worker& worker, Address k, Address v, std::int64_t slots, std::int64_t slot_stride,
             std::int64_t head_stride, float scale, int window, float softcap,
             const std::optional<Input<float>>& sinks, int chunk, int space, Address k_scales,
             Address v_scales) {
            std::vector<float> sinks_copy;
            if (sinks) sinks_copy.assign(sinks->data(), sinks->data() + sinks->size());
            return worker.add_layer({pointer(k),
                                     pointer(v),
                                     slots,
                                     slot_stride,
                                     head_stride,
                                     scale,
                                     {window, chunk},
                                     softcap,
                                     std::move(sinks_copy),
                                     space,
                                     pointer(k_scales),
                                     pointer(v_scales)});
          },
          "k_ptr"_a, "v_ptr"_a, "slots"_a, "slot_stride"_a, "head_stride"_a, "scale"_a, "window"_a,
          "softcap"_a, "sinks"_a.noconvert() = nb::none(), "chunk"_a = 0, "space"_a = 0, "k_scales_ptr"_a = 0,
          "v_scales_ptr"_a = 0,
          R"(Describe the next layer's part of the arena; return its number, counted from 0.

Token `slot`'s key for KV head h is the head_dim numbers at k_ptr + (slot * slot_stride + h * head_stride), strides
counted in numbers, and its value likewise at v_ptr. Scores are scaled, and then capped to
softcap * tanh(score / softcap) unless softcap is 0. window: how many tokens a token may see, itself included;
0 for all. chunk: a token sees those of its own chunk, of so many from the list's first on; 0 for no chunks. sinks: a
float32 for each query head, a score without a value that finish() adds once to the softmax, whatever the layer attends
to. space: which plan() the layer goes by; layers whose tokens are in different slots have different ones, numbered as
they come. k_scales_ptr, v_scales_ptr: with kv_dtype int8 the float32 of slot 0 and KV head 0; those of its other heads
follow, and those of other slots are slot_stride bytes apart. The arena must live as long as the worker.)")
      .def(
          "plan",
          [](Worker& worker, const Slab& slab, const Input<RequestId>& requests, int space) {
            worker.plan(slab, span_of(requests), space);
          },
          "slab"_a, "requests"_a.noconvert(), "space"_a = 0,
          R"(Take the batch's index lists (int64 request ids) from a space's slab: once an iteration, before any layer.

Each request's last slot is the new token's, which finish() fills; begin() attends to those before it. The lists
are snapshots: the slab may change afterwards.)")
      .def(
          "plan_lists",
          [](Worker& worker, const Input<std::int64_t>& offsets, const Input<Slot>& slots, int space) {
            worker.plan(span_of(offsets), span_of(slots), space);
          },
          "offsets"_a.noconvert(), "slots"_a.noconvert(), "space"_a = 0,
          "As plan(), of lists given outright: request i has slots[offsets[i]:offsets[i + 1]].")
      .def(
          "begin", [](Worker& worker, int layer, Address q) { worker.begin(layer, pointer(q)); }, "layer"_a,
          "q_ptr"_a, Unlocked(),
          R"(Begin to attend to each request's previous tokens, in the background; return at once.

q_ptr: the queries [requests, heads, head_dim], to be left as they are until finish() has returned.)")
      .def(
          "finish",
          [](Worker& worker, int layer, Address k, Address v, Address out) {
            worker.finish(layer, pointer(k), pointer(v), pointer(out));
          },
          "layer"_a, "k_ptr"_a, "v_ptr"_a, "out_ptr"_a, Unlocked(),
          R"(Store the new tokens' keys and values in their slots, and combine them with what begin() has begun.

k_ptr, v_ptr: [requests, kv_heads, head_dim]. out_ptr: [requests, heads, head_dim], is written.)")
      .def(
          "run",
          [](Worker& worker, int layer, Address q, Address k, Address v, Address out) {
            worker.begin(layer, pointer(q));
            worker.finish(layer, pointer(k), pointer(v), pointer(out));
          },
          "layer"_a, "q_ptr"_a, "k_ptr"_a, "v_ptr"_a, "out_ptr"_a, Unlocked(),
          "begin() and finish() in one call, with the same result to the last bit.")
      .def(
          "partial",
          [](Worker& worker, int layer, Address q, Address out, Address lse) {
            worker.partial(layer, pointer(q), pointer<float>(out), pointer<float>(lse));
          },
          "layer"_a, "q_ptr"_a, "out_ptr"_a, "lse_ptr"_a, Unlocked(),
          R"(Attention over all planned tokens of each request, whose keys and values are in the arena already.

q_ptr: [requests, heads, head_dim]. out_ptr: float32 [requests, heads, head_dim] and lse_ptr: float32
[requests, heads] are written: the normalised output, and the logarithm of the softmax's denominator, 0 and
-infinity for a request without tokens; a layer's sinks are not in it. A layer's window counts from the end of each list.)")
      .def(
          "append",
          [](Worker& worker, int layer, Address k, Address v, const Input<Slot>& slots) {
            worker.append(layer, pointer(k), pointer(v), span_of(slots));
          },
          "layer"_a, "k_ptr"_a, "v_ptr"_a, "slots"_a.noconvert(),
          "Store keys and values k_ptr, v_ptr: [len(slots), kv_heads, head_dim] in these slots (int32), as a "
          "prefill does.")
      .def(
          "read_bandwidth",
          [](Worker& worker, Address at, std::size_t size) {
            return worker.read_bandwidth(pointer(at), size);
          },
          "ptr"_a, "size"_a, Unlocked(),
          R"(Read `size` bytes at `ptr` once, on this worker's threads, as fast as can be; return bytes a second.

What attention is compared with, because it cannot be faster than reading the keys and values once.)")
      .def_prop_ro(
          "isa", [](const Worker& worker) { return attention::name_of(worker.isa()); },
          "The instruction set in use.")
      .def_prop_ro(
          "prefetch", [](const Worker& worker) { return attention::name_of(worker.prefetch()); },
          "The cache into which is fetched what is read next: l1, l2 or both.")
      .def_prop_ro("threads", &Worker::threads, "How many cores compute.");

  m.def(
      "combine",
      [](Address out_a, Address lse_a, Address out_b, Address lse_b, Address out, Address lse,
         std::size_t rows, std::size_t head_dim) {
        attention::combine({pointer<float>(out_a), pointer<float>(lse_a)},
                           {pointer<float>(out_b), pointer<float>(lse_b)},
                           {pointer<float>(out), pointer<float>(lse)}, rows, head_dim);
      },
      "out_a_ptr"_a, "lse_a_ptr"_a, "out_b_ptr"_a, "lse_b_ptr"_a, "out_ptr"_a, "lse_ptr"_a, "rows"_a,
      "head_dim"_a, Unlocked(),
      R"(Combine attention over two disjoint sets of tokens: row by row, out and lse of their union.

out_a_ptr, out_b_ptr, out_ptr: float32 [rows, head_dim]; lse_a_ptr, lse_b_ptr, lse_ptr: float32 [rows]. The
result may be written over either input.)");

  m.def(
      "attention_isas",
      [] {
        nb::typed<nb::list, nb::str> names;
        for (const attention::Isa isa : attention::available_isas()) names.append(attention::name_of(isa));
        return names;
      },
      "The instruction sets that this processor has kernels for, each containing those before it.");
}

}  // namespace lamina
