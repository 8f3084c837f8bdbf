#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/host_device.hpp"

// The requests that an mlx5 NIC reads from a send queue, byte for byte. A request is a row of segments of 16
// bytes each, in blocks of 64 bytes; the host or a GPU makes them, from this one source. Numbers in it
// are big-endian, so members hold them turned around.
//
// The bytes are compared with those of rdma-core in tests/lamina/fhbn/test_wqe.py.
namespace lamina::fhbn::rdma {

inline constexpr std::uint32_t kBlockBytes = 64;
inline constexpr std::uint32_t kSegmentBytes = 16;
inline constexpr std::uint32_t kSegmentsPerBlock = kBlockBytes / kSegmentBytes;

LAMINA_HD constexpr std::uint16_t big_endian(std::uint16_t value) {
  return static_cast<std::uint16_t>(value >> 8 | value << 8);
}
LAMINA_HD constexpr std::uint32_t big_endian(std::uint32_t value) {
  return value >> 24 | (value >> 8 & 0xff00) | (value & 0xff00) << 8 | value << 24;
}
LAMINA_HD constexpr std::uint64_t big_endian(std::uint64_t value) {
  return std::uint64_t{big_endian(static_cast<std::uint32_t>(value))} << 32 |
         big_endian(static_cast<std::uint32_t>(value >> 32));
}

enum class Opcode : std::uint8_t { kNothing = 0x00, kRdmaWrite = 0x08 };

// A request without a completion of its own is completed by that of a later one.
enum class Completion : std::uint8_t { kWithLater = 0, kRequested = 0x08 };

struct ControlSegment {
  std::uint32_t index_opcode;    // modifier (8 bits), block's number in the queue (16), opcode (8)
  std::uint32_t queue_segments;  // queue pair's number (24), segments of this request (8)
  std::uint8_t signature;
  std::uint8_t reserved[2];
  std::uint8_t flags;  // Completion
  std::uint32_t immediate;
};

struct RemoteAddressSegment {
  std::uint64_t address;
  std::uint32_t key;
  std::uint32_t reserved;
};

struct DataSegment {
  std::uint32_t bytes;  // the highest bit is kInline's
  std::uint32_t key;
  std::uint64_t address;
};

inline constexpr std::uint32_t kInline = 0x80000000;

static_assert(sizeof(ControlSegment) == kSegmentBytes && sizeof(RemoteAddressSegment) == kSegmentBytes &&
              sizeof(DataSegment) == kSegmentBytes);

LAMINA_HD constexpr ControlSegment control_segment(Opcode opcode, std::uint32_t block, std::uint32_t qpn,
                                                   std::uint32_t segments, Completion completion) {
  return {big_endian((block & 0xffff) << 8 | static_cast<std::uint32_t>(opcode)),
          big_endian(qpn << 8 | segments),
          0,
          {},
          static_cast<std::uint8_t>(completion),
          0};
}

LAMINA_HD constexpr RemoteAddressSegment remote_address_segment(std::uint64_t address, std::uint32_t key) {
  return {big_endian(address), big_endian(key), 0};
}

LAMINA_HD constexpr DataSegment data_segment(std::uint64_t address, std::uint32_t key, std::uint32_t bytes) {
  return {big_endian(bytes), big_endian(key), big_endian(address)};
}

// RDMA WRITE of registered memory.
struct alignas(kBlockBytes) WriteRequest {
  ControlSegment control;
  RemoteAddressSegment remote;
  DataSegment data;
  std::uint64_t unused[2];
  static constexpr std::uint32_t kSegments = 3;
};

// RDMA WRITE of bytes that lie in the request itself, so that the NIC need not fetch them.
template <std::uint32_t kRoom>
struct alignas(kBlockBytes) InlineRequest {
  ControlSegment control;
  RemoteAddressSegment remote;
  std::uint32_t inline_bytes;
  std::uint8_t bytes[kRoom];
};

// Segments of a request with that many bytes in it; the last one is filled up.
LAMINA_HD constexpr std::uint32_t inline_segments(std::uint32_t bytes) {
  return 2 + (static_cast<std::uint32_t>(sizeof(std::uint32_t)) + bytes + kSegmentBytes - 1) / kSegmentBytes;
}

LAMINA_HD constexpr std::uint32_t blocks_of(std::uint32_t segments) {
  return (segments + kSegmentsPerBlock - 1) / kSegmentsPerBlock;
}

// What one block has room for, and what a BlueFlame register has. A queue takes more; it does not pay.
inline constexpr std::uint32_t kShortInline = 28;
inline constexpr std::uint32_t kLongInline = 220;
using ShortInline = InlineRequest<kShortInline>;
using LongInline = InlineRequest<kLongInline>;

// Does nothing; its completion shows that all before it is done.
struct alignas(kBlockBytes) NothingRequest {
  ControlSegment control;
  std::uint64_t unused[6];
  static constexpr std::uint32_t kSegments = 1;
};

static_assert(sizeof(WriteRequest) == kBlockBytes && sizeof(NothingRequest) == kBlockBytes);
static_assert(sizeof(ShortInline) == kBlockBytes && sizeof(LongInline) == 4 * kBlockBytes);
static_assert(blocks_of(inline_segments(kShortInline)) == 1 && blocks_of(inline_segments(kLongInline)) == 4);

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
