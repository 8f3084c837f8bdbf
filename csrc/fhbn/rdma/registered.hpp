#pragma once

#include <cstddef>
#include <cstdint>

// Memory that NICs know by a key.
namespace lamina::fhbn::rdma {

// Of one request: what an mlx5 NIC moves at once. More would be too much for drivers that take lengths for
// signed numbers, too.
inline constexpr std::uint64_t kMostWriteBytes = std::uint64_t{1} << 30;

// An end's own.
struct LocalMemory {
  const std::byte* memory;
  std::uint64_t bytes;
  std::uint32_t key;
};

// The peer's, as the peer's NIC knows it: what the handshake has told.
struct RemoteMemory {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t key;
};

}  // namespace lamina::fhbn::rdma
