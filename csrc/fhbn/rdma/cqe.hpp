#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"
#include "fhbn/rdma/wqe.hpp"

// What an mlx5 NIC writes into a completion queue, as far as a sender reads it.
namespace lamina::fhbn::rdma {

struct alignas(64) CompletionEntry {
  std::uint8_t unused[54];
  std::uint8_t vendor_syndrome;  // of an error
  std::uint8_t syndrome;         // of an error
  std::uint32_t opcode_queue;    // the request's opcode (8), queue pair's number (24)
  std::uint16_t block;           // of the request's beginning
  std::uint8_t signature;
  std::uint8_t kind_owner;  // CompletionKind (4), and whose it is (1): written last
};

static_assert(sizeof(CompletionEntry) == 64);

enum class CompletionKind : std::uint8_t { kRequest = 0x0, kRequestError = 0xd, kInvalid = 0xf };

// Says "not yet": the entry before its first use.
inline constexpr std::uint8_t kNeverWritten = static_cast<std::uint8_t>(CompletionKind::kInvalid) << 4;

enum class Syndrome : std::uint8_t {
  kNone = 0x00,
  kLocalLength = 0x01,
  kLocalOperation = 0x02,
  kLocalProtection = 0x04,
  kFlushed = 0x05,
  kLocalAccess = 0x11,
  kRemoteInvalid = 0x12,
  kRemoteAccess = 0x13,
  kRemoteOperation = 0x14,
  kRetryExceeded = 0x15,
  kReceiverNotReady = 0x16,
  kRemoteAborted = 0x22,
};

LAMINA_HD constexpr CompletionKind kind_of(std::uint8_t kind_owner) {
  return static_cast<CompletionKind>(kind_owner >> 4);
}

// The NIC turns the owner's bit over each time it comes around, so that no entry has to be cleared. `taken`:
// how many the reader has taken so far; `entries` is a power of two.
LAMINA_HD constexpr bool is_ours(std::uint8_t kind_owner, std::uint32_t taken, std::uint32_t entries) {
  return kind_of(kind_owner) != CompletionKind::kInvalid &&
         (kind_owner & 1) == ((taken & entries) != 0 ? 1 : 0);
}

}  // namespace lamina::fhbn::rdma
