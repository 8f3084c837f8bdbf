#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "attention/kernel.hpp"

namespace lamina::attention {

namespace {

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + name_of(isa);
  return names;
}

Isa best_of(const std::vector<Isa>& isas) {
#if defined(__x86_64__)
  // Of Intel's (measured: Emerald Rapids) a VDPBF16PS takes 2.2 cycles, in which four FMAs do twice as much.
  if (isas.back() == Isa::kAvx512Bf16 && __builtin_cpu_is("intel")) return Isa::kAvx512;
#endif
  return isas.back();
}

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::kBaseline};
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return isas;
  }
  isas.push_back(Isa::kAvx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return isas;
  }
  isas.push_back(Isa::kAvx512);
  if (__builtin_cpu_supports("avx512bf16")) isas.push_back(Isa::kAvx512Bf16);
#elif defined(__aarch64__)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16, which older headers lack
  if ((getauxval(AT_HWCAP2) & kBf16) != 0) isas.push_back(Isa::kNeonBf16);
#endif
  return isas;
}

Isa choose_isa(std::string_view name) {
  const std::vector<Isa> isas = available_isas();
  if (name.empty()) {
    const char* wanted = std::getenv("LAMINA_ISA");
    if (wanted != nullptr) name = wanted;
  }
  if (name.empty()) return best_of(isas);
  const auto found = std::find_if(isas.begin(), isas.end(), [&](Isa isa) { return name_of(isa) == name; });
  if (found == isas.end()) {
    throw std::invalid_argument("isa is '" + std::string(name) + "' but this processor has " +
                                names_of(isas));
  }
  return *found;
}

std::string name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kNeonBf16:
      return "neon_bf16";
    default:
      return "baseline";
  }
}

Kernels kernels_for(Isa isa, DType dtype) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2_kernels(dtype);
    case Isa::kAvx512:
      return avx512_kernels(dtype);
    case Isa::kAvx512Bf16:
      return avx512_bf16_kernels(dtype);
#elif defined(__aarch64__)
    case Isa::kNeonBf16:
      return neon_bf16_kernels(dtype);
#endif
    default:
      return baseline_kernels(dtype);
  }
}

}  // namespace lamina::attention
