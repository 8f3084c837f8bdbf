#if defined(__aarch64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("arch=armv8.2-a+bf16")

#include <arm_neon.h>

#include "attention/kernel_template.hpp"
#include "attention/simd_neon.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {
namespace {

// Scores, by multiplying pairs of bfloat16 and adding the products to floats. (Vectors of SVE are as long as
// these on Neoverse N2 and V2.)
struct NeonDot {
  using S = NeonSimd;
  static constexpr int kNumbers = 8;  // of a vector
  static constexpr int kManyHeadsStep = kBlock;
  static constexpr bool kFillsUp = false;

  // Query heads to [N][padded(dim)].
  template <int N>
  static void pack(const BFloat16* q, int dim, float* to, int) {
    auto* out = reinterpret_cast<BFloat16*>(to);
    for (int n = 0; n < N; ++n) {
      std::memcpy(out + n * padded(dim), q + n * dim, static_cast<std::size_t>(dim) * sizeof(BFloat16));
    }
  }

  template <int N>
  [[gnu::noinline]] static void scores(const Step& step, const float* q, float* out) {
    constexpr int kEach = kTogether<S, N>;
    const int dim = step.dim;
    const int fetches = (step.fetches * kEach + kStep - 1) / kStep;
    const auto* queries = reinterpret_cast<const BFloat16*>(q);
    for (int t = 0; t < step.tokens; t += kEach) {
      step.ahead.fetch(fetches);
      const BFloat16* k[kEach];
      for (int i = 0; i < kEach; ++i)
        k[i] = reinterpret_cast<const BFloat16*>(step.rows + step.offsets[t + i]);
      // Each is summed in two, so that enough additions need not wait for each other.
      S::Vec even[N * kEach];
      S::Vec odd[N * kEach];
      for (int i = 0; i < N * kEach; ++i) even[i] = odd[i] = S::zero();
      int d = 0;
      for (; d + 2 * kNumbers <= dim; d += 2 * kNumbers) {
        add<N, kEach>(queries + d, padded(dim), k, d, even);
        add<N, kEach>(queries + d + kNumbers, padded(dim), k, d + kNumbers, odd);
      }
      if (d < dim) add<N, kEach>(queries + d, padded(dim), k, d, even);
      for (int i = 0; i < N * kEach; ++i) even[i] = S::add(even[i], odd[i]);
      S::store_sums(out + place_of<S, N>(0, step.at + t), kEach, even);
    }
  }

private:
  template <int N, int kEach>
  static void add(const BFloat16* q, int stride, const BFloat16* const (&k)[kEach], int d,
                  S::Vec (&sums)[N * kEach]) {
    bfloat16x8_t key[kEach];
    for (int i = 0; i < kEach; ++i) key[i] = load(k[i] + d);
    for (int n = 0; n < N; ++n) {
      const bfloat16x8_t query = load(q + n * stride);
      for (int i = 0; i < kEach; ++i) sums[n * kEach + i] = vbfdotq_f32(sums[n * kEach + i], query, key[i]);
    }
  }

  static bfloat16x8_t load(const BFloat16* p) { return vreinterpretq_bf16_u16(vld1q_u16(&p->bits)); }
};

}  // namespace

Kernels neon_bf16_kernels(DType dtype) {
  if (dtype != DType::kBFloat16) return wide_kernels<NeonSimd>(dtype);
  return {&RangeKernel<NeonSimd, BFloat16, NeonDot, WideSum<NeonSimd, BFloat16>>::attend,
          &MergeKernel<NeonSimd, BFloat16>::merge, &read<NeonSimd>};
}

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
