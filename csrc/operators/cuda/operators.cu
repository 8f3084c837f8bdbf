#include "cuda/runtime.hpp"
#include "operators/cuda/operators.cuh"
#include "operators/cuda/operators.h"

using namespace lamina::operators::cuda;

namespace {

struct Entries {
  int bytes;            // of a number
  const void* norm[3];  // of narrow, middling and wide rows
  const void* rotate;
  const void* gate;
};

template <typename Element>
Entries entries() {
  Entries all{static_cast<int>(sizeof(typename Element::Storage)),
              {reinterpret_cast<const void*>(&norm<Element, kNarrow>),
               reinterpret_cast<const void*>(&norm<Element, kMiddling>),
               reinterpret_cast<const void*>(&norm<Element, kWide>)},
              reinterpret_cast<const void*>(&rotate<Element>),
              nullptr};
  if constexpr (sizeof(typename Element::Storage) == 2)
    all.gate = reinterpret_cast<const void*>(&gate<Element>);
  return all;
}

Entries entries_of(std::int32_t dtype) {
  switch (dtype) {
    case LAMINA_CUDA_F32:
      return entries<F32>();
    case LAMINA_CUDA_F16:
      return entries<F16>();
    case LAMINA_CUDA_BF16:
      return entries<Bf16>();
    default:
      throw Failure{LAMINA_CUDA_BAD_ARGUMENT, "there is no such dtype"};
  }
}

bool aligned(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0; }

dim3 grid_for(std::int64_t count, std::int64_t of_block) {
  const std::int64_t blocks = (count + of_block - 1) / of_block;
  require(blocks <= INT32_MAX, "these are too many rows for one call");
  return grid_of(blocks);
}

}  // namespace

lamina_cuda_status lamina_cuda_norm(const lamina_cuda_norm_shape* shape, const void* x, int64_t block_rows,
                                    int64_t block_stride, const void* added, void* sum, const void* weight,
                                    void* out, int64_t rows, lamina_cuda_stream stream) {
  return guarded([&] {
    require(shape != nullptr, "there is no norm");
    const Entries kernels = entries_of(shape->dtype);
    require(shape->width > 0 && shape->width * kernels.bytes % 16 == 0, "a row is no multiple of 16 bytes");
    require(static_cast<std::int64_t>(shape->width) * kernels.bytes <= kRetained * kWide * 16,
            "a row is too wide");
    require(rows >= 0 && block_rows > 0 && block_stride % 16 == 0, "the rows lie nowhere");
    require((added == nullptr) == (sum == nullptr), "what is added needs a sum, and a sum something added");
    for (const void* memory :
         {x, added, static_cast<const void*>(sum), weight, static_cast<const void*>(out)})
      require(aligned(memory), "a tensor is not aligned to 16 bytes");
    require(rows == 0 || (x != nullptr && out != nullptr), "a tensor is missing");
    require_device();
    if (rows == 0) return;
    const NormArgs args{
        *shape, static_cast<const char*>(x), block_rows, block_stride, added, sum, weight, out, rows};
    const std::int64_t pieces = static_cast<std::int64_t>(shape->width) * kernels.bytes / 16;
    const int which = pieces <= kRetained * kNarrow ? 0 : pieces <= kRetained * kMiddling ? 1 : 2;
    const int threads = which == 2 ? kWide : kNormThreads;
    launch(kernels.norm[which], grid_for(rows, which == 0 ? kNormThreads / kNarrow : 1), threads,
           threads / 32 * static_cast<int>(sizeof(float)), stream, args, "norming");
  });
}

lamina_cuda_status lamina_cuda_rotary(const lamina_cuda_rotary_shape* shape, const void* x,
                                      int64_t head_stride, int64_t row_stride, const void* cos,
                                      const void* sin, int64_t table_stride, void* out, int64_t rows,
                                      lamina_cuda_stream stream) {
  return guarded([&] {
    require(shape != nullptr, "there is no rotation");
    const Entries kernels = entries_of(shape->dtype);
    require(shape->heads > 0 && shape->rotated >= 0 && shape->rotated % 2 == 0 &&
                shape->rotated <= shape->head_dim && shape->head_dim > 0,
            "heads are rotated by an even number of their dimensions");
    require(rows >= 0 && (rows == 0 || (x != nullptr && cos != nullptr && sin != nullptr && out != nullptr)),
            "a tensor is missing");
    require_device();
    if (rows == 0) return;
    const RotaryArgs args{*shape,
                          static_cast<const char*>(x),
                          head_stride,
                          row_stride,
                          static_cast<const char*>(cos),
                          static_cast<const char*>(sin),
                          table_stride,
                          out,
                          rows};
    const std::int64_t twos = rows * shape->heads * ((shape->head_dim + 1) / 2);
    launch(kernels.rotate, grid_for(twos, kRotaryThreads), kRotaryThreads, 0, stream, args, "rotating");
  });
}

lamina_cuda_status lamina_cuda_gate(int32_t dtype, int32_t activation, const void* gate, int64_t gate_stride,
                                    const void* up, int64_t up_stride, void* out, int64_t rows, int64_t width,
                                    lamina_cuda_stream stream) {
  return guarded([&] {
    const Entries kernels = entries_of(dtype);
    require(kernels.gate != nullptr, "gates are of 16-bit numbers");
    require(activation >= LAMINA_CUDA_SILU && activation <= LAMINA_CUDA_RELU, "there is no such activation");
    require(rows >= 0 && width > 0 && width * kernels.bytes % 16 == 0, "a row is no multiple of 16 bytes");
    require(gate_stride % 16 == 0 && up_stride % 16 == 0 && aligned(gate) && aligned(up) && aligned(out),
            "a tensor is not aligned to 16 bytes");
    require(rows == 0 || (gate != nullptr && up != nullptr && out != nullptr), "a tensor is missing");
    require_device();
    if (rows == 0) return;
    const GateArgs args{static_cast<const char*>(gate),
                        gate_stride,
                        static_cast<const char*>(up),
                        up_stride,
                        out,
                        rows,
                        width,
                        activation};
    launch(kernels.gate, grid_for(rows * (width * kernels.bytes / 16), kGateThreads), kGateThreads, 0, stream,
           args, "gating");
  });
}
