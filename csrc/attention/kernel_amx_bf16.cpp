#if defined(__x86_64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

#include "attention/kernel_template.hpp"
#include "attention/tiles.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

void attend(const RangeTask& task) {
  using Tiled = RangeKernel<Avx512Simd, BFloat16, TileDot, TileSum>;
  using Vectors =
      RangeKernel<Avx512Simd, BFloat16, WideDot<Avx512Simd, BFloat16>, WideSum<Avx512Simd, BFloat16>>;
  // A row is whole tiles, and there are query heads enough to fill them.
  const Shape& shape = task.shape;
  if (shape.group() < 3 || shape.head_dim % 32 != 0 || shape.value_dim() % 32 != 0)
    return Vectors::attend(task);
  static constexpr WholeTiles kWhole;
  _tile_loadconfig(&kWhole);
  Tiled::attend(task);
  _tile_release();  // a context switch need not keep them, and the next who uses them sets their shapes
}

}  // namespace

// Only bfloat16 gains from these instructions.
Kernels amx_bf16_kernels(DType dtype) {
  if (dtype != DType::kBFloat16) return avx512_kernels(dtype);
  return {&attend, &MergeKernel<Avx512Simd, BFloat16>::merge, &read<Avx512Simd>};
}

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
