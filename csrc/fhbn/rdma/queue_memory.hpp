#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fhbn/rdma/queue.hpp"

namespace lamina::fhbn::rdma {

// Memory for the queues of a softnic's queue pair, laid out as a driver does it: the queues and their
// doorbell records in pages of their own, which a GPU can be let reach, and the UAR page apart from them.
class QueueMemory {
public:
  // `blocks` of the send queue, and as many completions: a power of two from 8 to 32,768.
  explicit QueueMemory(std::uint32_t blocks);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  SendQueue send(std::uint32_t qpn) const;
  CompletionQueue completions() const;
  std::span<std::byte> queues() const { return {memory_, bytes_ - kPage}; }
  std::span<std::byte> uar_page() const { return {memory_ + bytes_ - kPage, kPage}; }

private:
  static constexpr std::size_t kPage = 4096;

  std::uint32_t blocks_;
  std::size_t bytes_;
  std::byte* memory_;
};

}  // namespace lamina::fhbn::rdma
