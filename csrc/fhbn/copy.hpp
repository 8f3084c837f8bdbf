#pragma once

#include <cstddef>
#include <span>

namespace lamina::fhbn {

// Into shared memory, at a multiple of kPartAlignment. What is written is ordered before a later
// store_release or store_ordered, as any write is.
void copy(std::byte* to, std::span<const std::byte> from);

}  // namespace lamina::fhbn
