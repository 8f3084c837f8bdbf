#include "softnic/soft_queue.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "fhbn/ordered.hpp"

namespace lamina::fhbn::rdma {

namespace {

// In a register: nothing was written here since the last look. No request begins so, as each has a segment.
constexpr std::uint64_t kQuiet = 0;
// How often a register is looked at until all of a request is in it (on a bus it would come as one), and from
// when a writer of it is given the processor.
constexpr int kLooks = 32;
constexpr int kLooksAtOnce = 8;
constexpr std::size_t kCacheLine = 64;
constexpr std::uint32_t kWordsPerBlock = kBlockBytes / sizeof(std::uint64_t);

bool forget(std::uint64_t& word, std::uint64_t observed) {
  return std::atomic_ref<std::uint64_t>(word).compare_exchange_strong(observed, kQuiet);
}

ControlSegment control_of(std::uint64_t doorbell) {
  ControlSegment control{};
  std::memcpy(&control, &doorbell, sizeof doorbell);
  return control;
}

std::uint16_t block_of(const ControlSegment& control) {
  return static_cast<std::uint16_t>(big_endian(control.index_opcode) >> 8);
}

std::uint32_t segments_of(const ControlSegment& control) { return big_endian(control.queue_segments) & 0xff; }

// Bytes within one cache line arrive at once, in address order at least: a waiter for a line relies on it.
bool is_line(const std::byte* to, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  return bytes > 0 && address % sizeof(std::uint64_t) == 0 && bytes % sizeof(std::uint64_t) == 0 &&
         address / kCacheLine == (address + bytes - 1) / kCacheLine;
}

void move_line(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, from + at, sizeof word);
    store_release(*reinterpret_cast<std::uint64_t*>(to + at), word);
  }
}

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

template <typename Segment>
Segment SoftQueue::Fetched::segment(std::uint32_t index) const {
  Segment segment;
  std::memcpy(&segment, bytes.data() + std::size_t{index} * kSegmentBytes, sizeof segment);
  return segment;
}

SoftQueue::SoftQueue(std::uint32_t qpn, std::uint32_t blocks, PeerMemory peer, Failed failed,
                     const SoftHabits& habits, FindLocal find)
    : memory_(blocks),
      send_(memory_.send(qpn)),
      completions_(memory_.completions()),
      peer_(std::move(peer)),
      failed_(std::move(failed)),
      habits_(habits),
      find_local_(std::move(find)),
      random_(static_cast<std::minstd_rand::result_type>(habits.seed)) {}

SoftQueue::~SoftQueue() {
  if (owner_.is_here()) fail();
}

void SoftQueue::fail() { store_release(*failed_, std::uint32_t{1}); }
bool SoftQueue::has_failed() const { return load_acquire(*failed_) != 0; }

bool SoftQueue::work() {
  bool did = look();
  if (!pieces_.empty()) {
    move_a_piece();
    if (pieces_.empty()) end_request(Syndrome::kNone);
    did = true;
  } else if (current_ || head_ != limit_) {
    if (!current_) fetch();
    const Syndrome syndrome = begin();
    if (syndrome != Syndrome::kNone || pieces_.empty()) end_request(syndrome);
    did = true;
  }
  if (!owed_.empty() && (!habits_.reorders || random_() % 4 == 0)) {
    complete();
    did = true;
  }
  return did;
}

bool SoftQueue::look() {
  bool rung = false;
  for (std::uint32_t half = 0; half < 2; ++half) {
    std::uint64_t* const words = send_.registers + half * send_.half_bytes / sizeof(std::uint64_t);
    if (load_acquire(words[0]) == kQuiet) continue;
    take_doorbell(words);
    rung = true;
  }
  return rung;
}

std::uint16_t SoftQueue::posted() const {
  return static_cast<std::uint16_t>(big_endian(load_acquire(*send_.doorbell_record)));
}

void SoftQueue::take_doorbell(std::uint64_t* half) {
  const std::uint64_t doorbell = load_acquire(half[0]);
  limit_ = head_ + static_cast<std::uint16_t>(posted() - head_);
  const ControlSegment control = control_of(doorbell);
  const bool is_next = !current_ && head_ != limit_ && block_of(control) == static_cast<std::uint16_t>(head_);
  if (!habits_.drops_blueflame && is_next) {
    for (int i = 0; i < kLooks && !current_; ++i) {
      if (i >= kLooksAtOnce) std::this_thread::yield();
      read_register(half, doorbell);
    }
  }
  forget(half[0], doorbell);
}

// Memory is no bus: a register may hold a doorbell before what was left of an earlier request, or the
// beginning of one whose end is still to come. What lies in the queue too is whole.
void SoftQueue::read_register(const std::uint64_t* half, std::uint64_t doorbell) {
  const std::uint32_t segments = segments_of(control_of(doorbell));
  const std::uint32_t blocks = blocks_of(segments);
  if (blocks == 0 || blocks > kMostBlocks || blocks > limit_ - head_) return;
  Fetched request;
  request.segments = segments;
  const auto* const requests = reinterpret_cast<const std::uint64_t*>(send_.requests);
  const std::uint32_t mask = send_.blocks * kWordsPerBlock - 1;
  for (std::uint32_t i = 0; i < blocks * kWordsPerBlock; ++i) {
    const std::uint64_t word = load_acquire(half[i]);
    if (word != requests[(head_ * kWordsPerBlock + i) & mask]) return;
    std::memcpy(request.bytes.data() + i * sizeof word, &word, sizeof word);
  }
  current_ = request;
  ++counts_.blueflames;
}

void SoftQueue::fetch() {
  Fetched& request = current_.emplace();
  const auto copy_block = [&](std::uint32_t i) {
    std::memcpy(request.bytes.data() + std::size_t{i} * kBlockBytes,
                send_.requests + std::size_t{(head_ + i) & (send_.blocks - 1)} * kBlockBytes, kBlockBytes);
  };
  copy_block(0);
  const std::uint32_t segments = segments_of(request.segment<ControlSegment>(0));
  const std::uint32_t blocks = blocks_of(segments);
  if (blocks == 0 || blocks > kMostBlocks || blocks > limit_ - head_) return;
  for (std::uint32_t i = 1; i < blocks; ++i) copy_block(i);
  request.segments = segments;
  ++counts_.fetched;
}

// Checks the current request and finds what it moves.
Syndrome SoftQueue::begin() {
  if (has_failed()) return Syndrome::kFlushed;
  const auto control = current_->segment<ControlSegment>(0);
  const std::uint32_t index_opcode = big_endian(control.index_opcode);
  const bool ours = limit_ - head_ <= send_.blocks && current_->segments != 0 && index_opcode >> 24 == 0 &&
                    block_of(control) == static_cast<std::uint16_t>(head_) &&
                    big_endian(control.queue_segments) >> 8 == send_.qpn;
  if (!ours) return Syndrome::kLocalOperation;
  switch (static_cast<Opcode>(index_opcode & 0xff)) {
    case Opcode::kNothing:
      return Syndrome::kNone;
    case Opcode::kRdmaWrite:
      return begin_write();
  }
  return Syndrome::kLocalOperation;
}

Syndrome SoftQueue::begin_write() {
  if (current_->segments < 3) return Syndrome::kLocalOperation;
  std::vector<Piece> from;
  std::uint64_t bytes = 0;
  if (const Syndrome syndrome = gather(from, bytes); syndrome != Syndrome::kNone) return syndrome;
  // A queue pair that has failed drops what comes, without a word.
  if (unplugged_ || load_acquire(*peer_.failed) != 0) return Syndrome::kRetryExceeded;
  const auto remote = current_->segment<RemoteAddressSegment>(1);
  const std::uint64_t offset = big_endian(remote.address) - peer_.known_as.address;
  if (bytes == 0) return Syndrome::kNone;
  const bool allowed = big_endian(remote.key) == peer_.known_as.key && offset <= peer_.known_as.bytes &&
                       bytes <= peer_.known_as.bytes - offset;
  if (!allowed) {
    // The refusing side fails as well, and notices with the next request to its own NIC.
    store_release(*peer_.failed, std::uint32_t{1});
    return Syndrome::kRemoteAccess;
  }
  cut_up(peer_.memory + offset, from);
  return Syndrome::kNone;
}

// The data segments of a write, in order: `to` of each piece is not known yet.
Syndrome SoftQueue::gather(std::vector<Piece>& from, std::uint64_t& bytes) const {
  for (std::uint32_t i = 2; i < current_->segments;) {
    const auto data = current_->segment<DataSegment>(i);
    const bool is_inline = (big_endian(data.bytes) & kInline) != 0;
    std::uint32_t size = big_endian(data.bytes) & ~kInline;
    if (size == 0 && !is_inline) size = kInline;  // 0 stands for 2 GiB there
    if (is_inline) {
      const std::size_t at = std::size_t{i} * kSegmentBytes + sizeof data.bytes;
      if (size > std::size_t{current_->segments} * kSegmentBytes - at) return Syndrome::kLocalOperation;
      from.push_back({nullptr, current_->bytes.data() + at, size});
      i += inline_segments(size) - 2;
    } else {
      const std::byte* const memory = find_local_(big_endian(data.key), big_endian(data.address), size);
      if (memory == nullptr) return Syndrome::kLocalProtection;
      from.push_back({nullptr, memory, size});
      ++i;
    }
    bytes += size;
  }
  return Syndrome::kNone;
}

// Pieces are moved from the last to the first.
void SoftQueue::cut_up(std::byte* to, const std::vector<Piece>& from) {
  for (const Piece& piece : from) {
    std::size_t at = 0;
    while (at < piece.bytes) {
      std::size_t bytes = piece.bytes - at;
      if (habits_.reorders) {
        const auto misaligned = reinterpret_cast<std::uintptr_t>(to) % kCacheLine;
        bytes = std::min<std::size_t>(bytes, (1 + random_() % 16) * kCacheLine - misaligned);
      }
      pieces_.push_back({to, piece.from + at, bytes});
      at += bytes;
      to += bytes;
    }
  }
  if (habits_.reorders) {
    std::shuffle(pieces_.begin(), pieces_.end(), random_);
  } else {
    std::reverse(pieces_.begin(), pieces_.end());
  }
}

void SoftQueue::move_a_piece() {
  const Piece piece = pieces_.back();
  pieces_.pop_back();
  if (is_line(piece.to, piece.bytes)) {
    move_line(piece.to, piece.from, piece.bytes);
  } else {
    std::memcpy(piece.to, piece.from, piece.bytes);
  }
}

void SoftQueue::end_request(Syndrome syndrome) {
  const auto control = current_->segment<ControlSegment>(0);
  const bool failed = syndrome != Syndrome::kNone;
  if (failed || control.flags == static_cast<std::uint8_t>(Completion::kRequested)) {
    CompletionEntry entry{};
    entry.syndrome = static_cast<std::uint8_t>(syndrome);
    entry.opcode_queue = big_endian((big_endian(control.index_opcode) & 0xff) << 24 | send_.qpn);
    entry.block = big_endian(static_cast<std::uint16_t>(head_));
    const auto kind = failed ? CompletionKind::kRequestError : CompletionKind::kRequest;
    entry.kind_owner = static_cast<std::uint8_t>(static_cast<std::uint8_t>(kind) << 4);
    owed_.push_back(entry);
  }
  if (failed) fail();
  if (limit_ - head_ > send_.blocks) limit_ = head_ + 1;  // a doorbell record that cannot be
  head_ += std::max(blocks_of(current_->segments), 1u);
  current_.reset();
  ++counts_.done;
}

// Writes the oldest completion that is owed, if there is a place for it: one that was not taken is never
// written over.
void SoftQueue::complete() {
  const std::uint32_t taken = big_endian(load_acquire(*completions_.doorbell_record));
  if (((completed_ - taken) & 0xffffff) >= completions_.count) return;
  CompletionEntry& entry = completions_.entries[completed_ & (completions_.count - 1)];
  CompletionEntry written = owed_.front();
  owed_.pop_front();
  const auto owner = static_cast<std::uint8_t>((completed_ & completions_.count) != 0 ? 1 : 0);
  // All but the owner first: a waiter reads that byte meanwhile.
  std::memcpy(&entry, &written, offsetof(CompletionEntry, kind_owner));
  store_release(entry.kind_owner, static_cast<std::uint8_t>(written.kind_owner | owner));
  ++completed_;
  ++counts_.completions;
}

}  // namespace lamina::fhbn::rdma
