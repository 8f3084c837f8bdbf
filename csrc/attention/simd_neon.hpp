#pragma once

#include <arm_neon.h>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Four floats at a time. Included only where the compiler may use BF16.
struct NeonSimd {
  using Vec = float32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kMostHeads = 4;
  static constexpr int kManyHeadsStep = kBlock;
  // Vectors of output per query head that fit in the registers with N heads.
  template <int N>
  static constexpr int columns() {
    return 4;
  }

  static Vec zero() { return vdupq_n_f32(0); }
  static Vec set1(float x) { return vdupq_n_f32(x); }
  static Vec load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Vec x) { vst1q_f32(p, x); }
  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  // Where one is NaN, the second, as on other processors.
  static Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static Vec round(Vec x) { return vrndnq_f32(x); }
  // 2^n for a whole n from -126 to 127.
  static Vec power_of_two(Vec n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  // y where x >= limit, else 0; of a NaN, y.
  static Vec keep_from(Vec x, float limit, Vec y) {
    const uint32x4_t below = vcltq_f32(x, set1(limit));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), below));
  }

  static Vec widen(const float* p) { return load(p); }
  static Vec widen(const BFloat16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16)); }
  static Vec widen(const Float16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }

  static void narrow(float* p, Vec x) { store(p, x); }
  static void narrow(BFloat16* p, Vec x) { vst1_u16(&p->bits, vreinterpret_u16_bf16(vcvt_bf16_f32(x))); }
  static void narrow(Float16* p, Vec x) { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  // Each vector's sum of lanes, in order.
  template <int K>
  static void store_sums(float* out, int, const Vec (&a)[K]) {
    for (int i = 0; i < K; i += 4) {
      store(out + i, vpaddq_f32(vpaddq_f32(a[i], a[i + 1]), vpaddq_f32(a[i + 2], a[i + 3])));
    }
  }
  // K floats, again and again.
  template <int K>
  static Vec repeat(const float* p) {
    if constexpr (K == 4) return load(p);
    if constexpr (K == 2) return vcombine_f32(vld1_f32(p), vld1_f32(p));
    if constexpr (K == 1) return set1(*p);
  }
  // Of each K lanes, the halves change places.
  template <int K>
  static Vec swap(Vec x) {
    if constexpr (K == 4) return vextq_f32(x, x, 2);
    if constexpr (K == 2) return vrev64q_f32(x);
  }
};

}  // namespace
}  // namespace lamina::attention
