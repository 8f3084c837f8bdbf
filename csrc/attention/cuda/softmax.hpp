#pragma once

#include <cmath>
#include <limits>

#include "cuda/host_device.hpp"

// The softmax by parts: what the kernels keep of the tokens they have seen, and how two parts become one.
//
// Inside a kernel scores are kept as exponents of two, because that is the exponential the hardware has; what
// leaves it is a natural logarithm.
namespace lamina::attention::cuda {

constexpr float kNothing =
    -std::numeric_limits<float>::infinity();  // the largest score of no token, and its log
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

LAMINA_HD float exp2_of(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;"
      : "=f"(y)
      : "f"(x));  // 2 ulp; exp2f would add denormals, which are not needed
  return y;
#else
  return std::exp2(x);
#endif
}

// From q.k to the exponent of two of its weight: scale, then the soft cap where there is one.
struct Scoring {
  float slope;  // of q.k: to the exponent, or where capped to the exponent of e^2x in tanh x
  float cap;    // as an exponent of two; 0 without a cap

  static Scoring of(float scale, float soft_cap) {
    if (soft_cap > 0) return {2 * kLog2E * scale / soft_cap, soft_cap * kLog2E};
    return {scale * kLog2E, 0};
  }

  LAMINA_HD float operator()(float dot) const {
    if (cap == 0) return dot * slope;
    // tanh x = 1 - 2 / (e^2x + 1): absolutely as exact as x is, which is what a score needs, and right at the
    // ends.
    return cap - 2 * cap / (exp2_of(dot * slope) + 1);
  }
};

// How much of what was gathered under the old maximum counts under the new one. Nothing gathered counts
// nothing.
LAMINA_HD float decay(float old_max, float new_max) {
  return old_max == kNothing ? 0.0f : exp2_of(old_max - new_max);
}

// One head's running maximum (an exponent of two) and the sum of weights relative to it.
struct Running {
  float max = kNothing;
  float sum = 0;

  // Makes room for scores up to `seen`. Returns what the values gathered so far are to be multiplied with.
  LAMINA_HD float raise(float observed) {
    const float higher = max > observed ? max : observed;
    const float factor = decay(max, higher);
    max = higher;
    sum *= factor;
    return factor;
  }

  LAMINA_HD float weight(float score) const { return exp2_of(score - max); }
};

// The natural logarithm of a sum of weights relative to 2^max.
LAMINA_HD float log_sum(float max, float sum) { return sum > 0 ? (max + std::log2(sum)) * kLn2 : kNothing; }

// How two normalised parts with these log-sum-exps are to be weighted to make one, and its log-sum-exp.
// This is [A, S] of the union of two disjoint sets of tokens, with S kept as its logarithm.
struct Merge {
  float first;
  float second;
  float lse;
};

LAMINA_HD Merge merge(float first, float second) {
  const float larger = first > second ? first : second;
  if (larger == kNothing) return {0, 0, kNothing};
  const float a = std::exp(first - larger);
  const float b = std::exp(second - larger);
  return {a / (a + b), b / (a + b), larger + std::log(a + b)};
}

}  // namespace lamina::attention::cuda
