#include "fhbn/rdma/verbs_writer.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "fhbn/rdma/queue.hpp"
#include "fhbn/rdma/syndrome.hpp"

namespace lamina::fhbn::rdma {

namespace {

// Longer than a NIC takes to give up a peer that does not answer.
constexpr Duration kPatience = std::chrono::seconds(10);

NicFault fault_of(std::uint32_t status) {
  switch (status) {
    case abi::kLocalLength:
    case abi::kLocalProtection:
      return NicFault::kLocalAccess;
    case abi::kRemoteAccess:
      return NicFault::kRemoteAccess;
    case abi::kRetryExceeded:
      return NicFault::kRetryExceeded;
    case abi::kFlushed:
      return NicFault::kFlushed;
    case abi::kLocalOperation:
    case abi::kRemoteInvalid:
      return NicFault::kMalformed;
    default:
      return NicFault::kOther;
  }
}

}  // namespace

VerbsWriter::VerbsWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<Segment> memory,
                         std::size_t offered_bytes)
    : connection_(std::move(device), std::move(memory), offered_bytes, {kDepth, kLineBytes, kDepth}) {}

void VerbsWriter::write(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t bytes) {
  const std::uint64_t most =
      std::min<std::uint64_t>(connection_.device().port().max_message_bytes, kMostWriteBytes);
  for (std::uint64_t at = 0; at < bytes; at += most) {
    Queued& one = queue(remote_offset + at);
    one.piece = {reinterpret_cast<std::uintptr_t>(connection_.memory().memory()) + local_offset + at,
                 static_cast<std::uint32_t>(std::min(bytes - at, most)), connection_.local_key()};
  }
}

void VerbsWriter::write_line(std::uint64_t remote_offset, const Side& line) {
  Queued& one = queue(remote_offset);
  std::memcpy(one.line.data(), &line, kLineBytes);
  one.piece = {reinterpret_cast<std::uintptr_t>(one.line.data()), kLineBytes, 0};
  one.request.flags = abi::kInline;
}

// The next request, with its destination filled in.
VerbsWriter::Queued& VerbsWriter::queue(std::uint64_t remote_offset) {
  if (queued_count_ == kMostAtOnce) ring();
  Queued& one = queued_[queued_count_++];
  one.request = {};
  one.request.pieces = &one.piece;
  one.request.piece_count = 1;
  one.request.opcode = abi::kRdmaWrite;
  one.request.remote_address = connection_.peer().memory + remote_offset;
  one.request.rkey = connection_.peer().rkey;
  return one;
}

void VerbsWriter::ring() {
  const std::uint32_t count = std::exchange(queued_count_, 0);
  if (failure_) throw *failure_;
  if (count == 0) return;
  if (handed_ + count > completed_ + kDepth) wait_until(handed_ + count - kDepth, kPatience);
  for (std::uint32_t i = 0; i + 1 < count; ++i) queued_[i].request.next = &queued_[i + 1].request;
  // Its completion is that of all before it.
  handed_ += count;
  queued_[count - 1].request.id = handed_;
  queued_[count - 1].request.flags |= abi::kSignalled;
  abi::SendRequest* refused = nullptr;
  const int error =
      connection_.device().context()->calls.post(connection_.pair(), &queued_[0].request, &refused);
  if (error != 0) fail(NicFault::kMalformed, connection_.device().name() + ": " + std::strerror(error));
}

void VerbsWriter::check() {
  if (failure_) throw *failure_;
  constexpr int kMost = 16;
  std::array<abi::Completion, kMost> completions;
  const int count =
      connection_.device().context()->calls.poll(connection_.completions(), kMost, completions.data());
  if (count < 0) fail(NicFault::kOther, connection_.device().name() + " gives no completions");
  for (int i = 0; i < count; ++i) {
    // The first that has failed: those after it have because of it.
    if (completions[i].status != abi::kSuccess) {
      fail(fault_of(completions[i].status), connection_.device().name() + ", status " +
                                                std::to_string(completions[i].status) + ", vendor's " +
                                                std::to_string(completions[i].vendor_error));
    }
    completed_ = completions[i].id;
  }
}

void VerbsWriter::drain(Duration timeout) {
  ring();
  wait_until(handed_, timeout);
}

void VerbsWriter::wait_until(std::uint64_t completed, Duration timeout) {
  const auto end = Clock::now() + timeout;
  while (true) {
    const bool last_look = Clock::now() >= end;
    check();
    if (completed_ >= completed) return;
    if (last_look) fail(NicFault::kStuck, connection_.device().name());
    std::this_thread::yield();
  }
}

void VerbsWriter::fail(NicFault fault, const std::string& code) {
  failure_.emplace(fault, sentence_of(fault, connection_.peer_name(), code));
  throw *failure_;
}

}  // namespace lamina::fhbn::rdma
