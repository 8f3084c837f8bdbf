#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "attention/kernel.hpp"

namespace lamina::attention {

namespace {

// A table and no measurement at the first start: a neighbour's load at that moment would decide for good, and
// two starts of one program would not be the same program. `laminabench bench attention` measures both in
// turns and says where the other one is faster, which is when this gets a line.
//
// Prefetched are some 32 KiB in addition to as many that are being read: more than a first-level cache
// holds. Into the second level is better wherever it was measured, so a processor that is not here gets that.
//
// AMD Zen 4: 1.3 to 2.1 times as fast as into L1; with one query head to a KV head 1.0, and 1.4 in such
// steps. Zen 3: 0.98 to 1.04; by slots 1.2 to 1.5 times as fast as into L2 (and 0.8 to 1.0 where tokens are
// not in order, so there it does not): it drops prefetches while it has no place for another
// miss.
//
// Intel Emerald Rapids: 1.0 to 1.2 times as fast as into L1; both 1.0 to 1.2 times as fast as into L2 alone.
// Sapphire Rapids: rows of 2 KiB that are read in order 1.2 to 1.4 times as fast with nothing fetched ahead
// as with both, because every prefetch takes one of the few places of a miss from the processor's own;
// shorter ones, or those of one head after the other, half as fast. (Nothing was not tried on the Emerald
// Rapids.)
constexpr Prefetch kUsual = Prefetch::kL2;

#if defined(__x86_64__)
// AMD's family 1Ah. Not measured with L2 yet: with L1 it reads 80 % of what its memory gives.
bool is_zen5() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (!__builtin_cpu_is("amd") || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) == 0x1a;
}
#endif

Prefetch best() {
#if defined(__x86_64__)
  if (is_zen5()) return Prefetch::kL1;
  if (__builtin_cpu_is("znver3")) return Prefetch::kSlots;
  if (__builtin_cpu_is("intel")) return Prefetch::kShort;
#endif
  return kUsual;
}

}  // namespace

Prefetch choose_prefetch(std::string_view name) {
  if (name.empty()) {
    const char* wanted = std::getenv("LAMINA_PREFETCH");
    if (wanted != nullptr) name = wanted;
  }
  if (name.empty()) return best();
  for (const Prefetch prefetch :
       {Prefetch::kNone, Prefetch::kL1, Prefetch::kL2, Prefetch::kBoth, Prefetch::kShort, Prefetch::kSlots}) {
    if (name == name_of(prefetch)) return prefetch;
  }
  throw std::invalid_argument("prefetch is '" + std::string(name) +
                              "' but must be none, l1, l2, both, short or slots");
}

std::string name_of(Prefetch prefetch) {
  switch (prefetch) {
    case Prefetch::kNone:
      return "none";
    case Prefetch::kL1:
      return "l1";
    case Prefetch::kL2:
      return "l2";
    case Prefetch::kBoth:
      return "both";
    case Prefetch::kShort:
      return "short";
    default:
      return "slots";
  }
}

}  // namespace lamina::attention
