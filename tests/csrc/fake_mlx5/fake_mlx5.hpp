#pragma once

#include <cstdint>

#include "fhbn/rdma/ibverbs_abi.hpp"
#include "fhbn/rdma/queue.hpp"

// A libibverbs and a libmlx5 with one device, mlx5_0, whose NIC is a softnic: the set-up for a ConnectX finds
// queues behind these libraries, and drives them, on a machine without one. A test loads them instead of the
// real ones.
#pragma GCC visibility push(default)
namespace fake_mlx5 {

// What a test may have otherwise.
struct Settings {
  bool port_is_up = true;
  bool is_mlx5 = true;
  bool has_blueflame = true;
  bool drops_blueflame = false;
  bool takes_device_memory = true;
  std::uint8_t port_flags = 0;
  int showing_fails_with = 0;  // an errno
  std::uint32_t block_bytes = lamina::fhbn::rdma::kBlockBytes;
  std::uint32_t entry_bytes = sizeof(lamina::fhbn::rdma::CompletionEntry);
};
Settings& settings();

// Contexts, domains, regions and queues that were not destroyed.
int living();
// Of the regions among them.
std::uint64_t registered_bytes();
// Whether the library was asked to keep what it registers from forks.
bool hides_from_forks();
// How a queue pair was told to reach its peer, the last time.
lamina::fhbn::rdma::abi::AddressVector last_path();
// Of the requests of all queue pairs so far, those that the NIC took from a register, and from the queue.
std::uint64_t blueflames();
std::uint64_t fetched();

// For libmlx5: a connected queue pair's queues.
struct Queues {
  lamina::fhbn::rdma::SendQueue send;
  lamina::fhbn::rdma::CompletionQueue completions;
};
Queues queues(lamina::fhbn::rdma::abi::QueuePair* pair);

}  // namespace fake_mlx5
#pragma GCC visibility pop
