#pragma once

namespace lamina::attention {
namespace {

// e^x = power * (1 + tail), power a power of two: kept apart so that e^x - 1 need not cancel.
template <typename S>
struct Exponential {
  typename S::Vec power;
  typename S::Vec tail;
};

// For x from -87 to 88. The polynomial is Cephes' expf; the result is within 1 unit in the last place or so.
template <typename S>
Exponential<S> split_exp(typename S::Vec x) {
  using Vec = typename S::Vec;
  const Vec n = S::round(S::mul(x, S::set1(1.44269504f)));
  const Vec r = S::fma(n, S::set1(2.12194440e-4f), S::fma(n, S::set1(-0.693359375f), x));
  Vec p = S::set1(1.9875691500e-4f);
  p = S::fma(p, r, S::set1(1.3981999507e-3f));
  p = S::fma(p, r, S::set1(8.3334519073e-3f));
  p = S::fma(p, r, S::set1(4.1665795894e-2f));
  p = S::fma(p, r, S::set1(1.6666665459e-1f));
  p = S::fma(p, r, S::set1(5.0000001201e-1f));
  return {S::power_of_two(n), S::fma(S::mul(r, r), p, r)};
}

// e^x for x <= 0, and 0 where that is no normal number: a share of 1e-38 of the largest weight.
template <typename S>
typename S::Vec exp_negative(typename S::Vec x) {
  constexpr float kLeast = -87.0f;
  const auto e = split_exp<S>(S::max(S::set1(kLeast), x));
  return S::keep_from(x, kLeast, S::fma(e.power, e.tail, e.power));
}

// tanh x = (e^2x - 1) / (e^2x + 1); above 20 it is 1 to the last bit of a float.
template <typename S>
typename S::Vec tanh(typename S::Vec x) {
  using Vec = typename S::Vec;
  const Vec twice = S::add(x, x);
  const auto e = split_exp<S>(S::max(S::set1(-40.0f), S::min(S::set1(40.0f), twice)));
  const Vec less_one = S::fma(e.power, e.tail, S::sub(e.power, S::set1(1.0f)));
  return S::div(less_one, S::add(less_one, S::set1(2.0f)));
}

}  // namespace
}  // namespace lamina::attention
