#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "attention/kernel.hpp"

namespace lamina::attention {

namespace {

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + name_of(isa);
  return names;
}

#if defined(__x86_64__)
// Linux lets a process use tile registers after a request, which also covers later threads.
bool has_tiles() {
  static const bool has = [] {
    constexpr unsigned kTilesOfBf16 = 1u << 22 | 1u << 24;  // AMX-BF16 and AMX-TILE
    constexpr long kRequestPermission = 0x1023;             // ARCH_REQ_XCOMP_PERM, which older headers lack
    constexpr long kTileData = 18;
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTilesOfBf16) == kTilesOfBf16 &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}
#endif

Isa best_of(const std::vector<Isa>& isas) {
#if defined(__x86_64__)
  // Of Intel's (measured: Emerald Rapids, whose tiles were hidden) a VDPBF16PS takes 2.2 cycles, in which
  // four FMAs do twice as much.
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
  if (!__builtin_cpu_supports("avx512bf16")) return isas;
  isas.push_back(Isa::kAvx512Bf16);
  if (has_tiles()) isas.push_back(Isa::kAmxBf16);
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
  const auto match = std::find_if(isas.begin(), isas.end(), [&](Isa isa) { return name_of(isa) == name; });
  if (match == isas.end()) {
    throw std::invalid_argument("isa is '" + std::string(name) + "' but this processor has " +
                                names_of(isas));
  }
  return *match;
}

std::string name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmxBf16:
      return "amx_bf16";
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
    case Isa::kAmxBf16:
      return amx_bf16_kernels(dtype);
#elif defined(__aarch64__)
    case Isa::kNeonBf16:
      return neon_bf16_kernels(dtype);
#endif
    default:
      return baseline_kernels(dtype);
  }
}

}  // namespace lamina::attention
