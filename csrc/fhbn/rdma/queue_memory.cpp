#include "fhbn/rdma/queue_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

namespace lamina::fhbn::rdma {

namespace {

// A doorbell record has a word for receiving and one for sending; completions have one of their own.
constexpr std::size_t kSendRecord = sizeof(std::uint32_t);
constexpr std::size_t kCompletionRecord = 64;
// Where mlx5 NICs have their first BlueFlame register, and how large its halves are.
constexpr std::size_t kRegisters = 0x800;
constexpr std::uint32_t kHalfBytes = 256;

std::size_t whole_pages(std::size_t bytes, std::size_t page) { return (bytes + page - 1) / page * page; }

}  // namespace

QueueMemory::QueueMemory(std::uint32_t blocks) : blocks_(blocks) {
  if (!is_sound(blocks)) throw std::invalid_argument("a send queue has 8 to 32,768 blocks, a power of two");
  const std::size_t queues = std::size_t{blocks} * (kBlockBytes + sizeof(CompletionEntry));
  bytes_ = whole_pages(queues, kPage) + 2 * kPage;  // the records' page and the UAR page
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "finding memory for a queue pair");
  }
  memory_ = static_cast<std::byte*>(memory);
  const CompletionQueue completed = completions();
  for (std::uint32_t i = 0; i < completed.count; ++i) {
    (new (completed.entries + i) CompletionEntry{})->kind_owner = kNeverWritten;
  }
}

QueueMemory::~QueueMemory() { ::munmap(memory_, bytes_); }

SendQueue QueueMemory::send(std::uint32_t qpn) const {
  std::byte* const records = memory_ + bytes_ - 2 * kPage;
  return {.requests = memory_,
          .doorbell_record = reinterpret_cast<std::uint32_t*>(records + kSendRecord),
          .registers = reinterpret_cast<std::uint64_t*>(uar_page().data() + kRegisters),
          .blocks = blocks_,
          .qpn = qpn,
          .half_bytes = kHalfBytes,
          .blueflame = true};
}

CompletionQueue QueueMemory::completions() const {
  std::byte* const records = memory_ + bytes_ - 2 * kPage;
  return {.entries = reinterpret_cast<CompletionEntry*>(memory_ + std::size_t{blocks_} * kBlockBytes),
          .doorbell_record = reinterpret_cast<std::uint32_t*>(records + kCompletionRecord),
          .count = blocks_};
}

}  // namespace lamina::fhbn::rdma
