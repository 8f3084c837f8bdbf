#include "fhbn/rdma/mlx5_writer.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "fhbn/rdma/syndrome.hpp"

namespace lamina::fhbn::rdma {

namespace {

// A payload of up to this travels in its request: copying it costs less than the NIC's fetching it.
constexpr std::uint64_t kMostInline = kLongInline;

bool lies_within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t all) {
  return offset <= all && bytes <= all - offset;
}

}  // namespace

Mlx5Writer::Mlx5Writer(QueuePair pair, const LocalMemory& local, const RemoteMemory& remote, std::string peer,
                       Duration patience)
    : pair_(std::move(pair)), local_(local), remote_(remote), peer_(std::move(peer)), patience_(patience) {
  if (!is_sound(pair_.send, pair_.completions)) {
    throw std::invalid_argument(
        "a send queue has 8 to 32,768 blocks, a power of two, and its completion queue no fewer");
  }
}

Remote Mlx5Writer::remote_at(std::uint64_t offset, std::uint64_t bytes) const {
  if (!lies_within(offset, bytes, remote_.bytes)) {
    throw std::out_of_range("a write would go beyond the memory that " + peer_ + " has registered");
  }
  return {remote_.address + offset, remote_.key};
}

bool Mlx5Writer::has_room() const {
  constexpr std::uint32_t kMessage = blocks_of(inline_segments(kLongInline)) + 1;
  return free_blocks(pair_.send, state_) >= kMessage;
}

void Mlx5Writer::write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) {
  if (!lies_within(local_offset, bytes, local_.bytes)) {
    throw std::out_of_range("a write to " + peer_ + " would read beyond the registered memory");
  }
  const Remote remote = remote_at(remote_offset, bytes);
  if (bytes == 0) return;  // in a request it stands for 2 GiB
  if (bytes <= kMostInline) {
    const auto size = static_cast<std::uint32_t>(bytes);
    make_room(blocks_of(inline_segments(size)), patience_);
    put_inline<kLongInline>(pair_.send, state_, local_.memory + local_offset, remote, size);
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(local_.memory);
  for (std::uint64_t at = 0; at < bytes; at += kMostWriteBytes) {
    const std::uint64_t size = std::min(bytes - at, kMostWriteBytes);
    make_room(1, patience_);
    put_write(pair_.send, state_, address + local_offset + at, local_.key, {remote.address + at, remote.key},
              static_cast<std::uint32_t>(size));
  }
}

void Mlx5Writer::write_line(std::uint64_t remote_offset, const Side& line) {
  static_assert(kLineBytes <= kShortInline);
  make_room(1, patience_);
  put_inline<kShortInline>(pair_.send, state_, &line, remote_at(remote_offset, kLineBytes), kLineBytes);
}

void Mlx5Writer::ring() {
  if (failure_) throw *failure_;
  rdma::ring<HostOrder>(pair_.send, state_);
}

void Mlx5Writer::check() {
  Completed completed;
  while (take_completion<HostOrder>(pair_.completions, state_, completed)) {
    if (completed.failed && !failure_) {
      failure_.emplace(fault_of(completed.syndrome), sentence_of(completed, peer_));
    }
  }
  if (failure_) throw *failure_;
}

void Mlx5Writer::make_room(std::uint32_t blocks, Duration timeout) {
  check();
  if (free_blocks(pair_.send, state_) >= blocks) return;
  ring();
  wait_until_done(state_.next - (pair_.send.blocks - blocks), Clock::now() + timeout);
}

void Mlx5Writer::drain(Duration timeout) {
  const auto end = Clock::now() + timeout;
  make_room(1, timeout);
  put_nothing(pair_.send, state_);
  ring();
  wait_until_done(state_.next, end);
}

// `block`: the first one that need not be done.
void Mlx5Writer::wait_until_done(std::uint32_t block, Clock::time_point end) {
  while (true) {
    const bool last_look = Clock::now() >= end;
    check();
    if (static_cast<std::int32_t>(state_.done - block) >= 0) return;
    if (last_look) break;
    std::this_thread::yield();
  }
  failure_.emplace(NicFault::kStuck, sentence_of(NicFault::kStuck, peer_, "its queue stands still"));
  throw *failure_;
}

}  // namespace lamina::fhbn::rdma
