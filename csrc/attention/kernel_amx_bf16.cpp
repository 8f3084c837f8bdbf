#if defined(__x86_64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

#include "attention/kernel_template.hpp"
#include "attention/tiles.hpp"

namespace lamina::attention {

namespace {

void attend(const RangeTask& task) {
  // A row is whole tiles, and there are query heads enough to fill them; else vectors do it.
  const Shape& shape = task.shape;
  if (shape.group() < 3 || shape.head_dim % 32 != 0 || shape.value_dim() % 32 != 0) {
    return avx512_kernels(DType::kBFloat16).attend(task);
  }
  static constexpr WholeTiles kWhole;
  _tile_loadconfig(&kWhole);
  RangeKernel<Avx512Simd, BFloat16, TileDot, TileSum>::attend(task);
  _tile_release();  // a context switch need not keep them, and the next user sets their shapes
}

}  // namespace

// Only bfloat16's attention gains from these instructions.
Kernels amx_bf16_kernels(DType dtype) {
  Kernels kernels = avx512_kernels(dtype);
  if (dtype == DType::kBFloat16) kernels.attend = &attend;
  return kernels;
}

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
