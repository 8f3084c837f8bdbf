#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "fhbn/rdma/ibverbs_abi.hpp"

// The part of libmlx5's binary interface that shows what its queues are made of; loaded at run time as
// libibverbs is, and held against its headers by the same kind of test.
namespace lamina::fhbn::rdma::abi {

struct Mlx5QueueRoom {
  void* memory;
  std::uint32_t count;  // of pieces of `stride` bytes
  std::uint32_t stride;
};

struct Mlx5Registers {
  void* address;
  std::uint32_t half_bytes;  // 0: they take doorbells only, no BlueFlame
};

struct Mlx5QueuePair {
  std::uint32_t* doorbell_records;  // of receiving, of sending
  Mlx5QueueRoom send;
  Mlx5QueueRoom receive;
  Mlx5Registers registers;
  std::uint64_t wanted;  // which of the following are to be filled in: none
  off_t uar_offset;
  std::uint32_t raw_numbers[4];
  std::uint64_t raw_address;
};

struct Mlx5CompletionQueue {
  void* entries;
  std::uint32_t* doorbell_records;  // of what was taken, of what is waited for
  std::uint32_t count;
  std::uint32_t entry_bytes;
  void* uar;
  std::uint32_t number;
  std::uint64_t wanted;
};

// What is to be shown, and where.
struct Mlx5Objects {
  QueuePair* pair;
  Mlx5QueuePair* shown_pair;
  CompletionQueue* completions;
  Mlx5CompletionQueue* shown_completions;
  void* others[28];  // for those of newer versions, too
};

// Of a queue pair's doorbell records.
inline constexpr std::size_t kSendingRecord = 1;

enum : std::uint64_t {
  kShowQueuePair = 1 << 0,
  kShowCompletionQueue = 1 << 1,
};

}  // namespace lamina::fhbn::rdma::abi
