#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "cuda/runtime.hpp"
#include "fhbn/cuda/arguments.hpp"
#include "fhbn/cuda/mapped.hpp"
#include "fhbn/cuda/nic.cuh"
#include "fhbn/cuda/nic.h"
#include "fhbn/cuda/outcome.hpp"
#include "fhbn/ordered.hpp"
#include "fhbn/rdma/syndrome.hpp"

namespace lamina::fhbn::cuda {

namespace {

void require_nic(const lamina_cuda_nic* nic) {
  require(nic != nullptr, "the NIC's queues are missing");
  const lamina_cuda_nic_queues& queues = nic->queues;
  require(queues.requests != nullptr && queues.send_record != nullptr && queues.registers != nullptr &&
              queues.completions != nullptr && queues.completion_record != nullptr,
          "a part of the NIC's queues is missing");
  require(rdma::is_sound(queues.blocks) && is_power_of_two(queues.completion_count) &&
              queues.completion_count >= queues.blocks,
          "a send queue has 8 to 32,768 blocks, a power of two, and its completion queue no fewer");
}

lamina_cuda_channel as_channel(const lamina_cuda_nic& nic) {
  return {nic.memory, nic.bytes, nic.side, nic.on_device, nic.timeout_ns, nic.peer};
}

Preamble checked(const lamina_cuda_nic& nic) {
  const lamina_cuda_channel channel = as_channel(nic);
  require_channel(&channel);
  return checked_preamble(channel);
}

MappedPages map_queues(const lamina_cuda_nic_queues& queues) {
  return MappedPages(
      {{queues.requests, std::size_t{queues.blocks} * rdma::kBlockBytes},
       {queues.send_record, sizeof(std::uint32_t)},
       {queues.completions, std::size_t{queues.completion_count} * sizeof(rdma::CompletionEntry)},
       {queues.completion_record, sizeof(std::uint32_t)}});
}

// Registers without halves still take a doorbell.
MappedPages map_registers(const lamina_cuda_nic_queues& queues) {
  const std::size_t bytes = std::max(std::size_t{2} * queues.half_bytes, sizeof(std::uint64_t));
  return MappedPages({{queues.registers, bytes}},
                     queues.registers_are_io != 0 ? cudaHostRegisterIoMemory : 0);
}

// The queue goes on after a wait that the host has ended: what was put there is whole.
lamina_cuda_nic_left left_by(const NicCursor& cursor, const Side& peer) {
  const bool works = cursor.trouble == NicTrouble::kNone || cursor.trouble == NicTrouble::kAborted;
  return {std::bit_cast<lamina_cuda_nic_state>(cursor.state), cursor.notified, works ? 1 : 0,
          peer.state == State::kOpen ? 0 : 1};
}

}  // namespace

}  // namespace lamina::fhbn::cuda

namespace cuda = lamina::fhbn::cuda;
namespace fhbn = lamina::fhbn;
namespace rdma = lamina::fhbn::rdma;

struct lamina_cuda_nic_end : cuda::OwnedEnd<cuda::NicMailbox, cuda::NicCursor> {
  lamina_cuda_nic_end(const lamina_cuda_nic& nic, const fhbn::Preamble& preamble)
      : OwnedEnd(nic.peer,
                 {std::bit_cast<rdma::SendState>(nic.state), preamble.first_seqno, cuda::NicTrouble::kNone}),
        memory(nic.memory, nic.bytes, nic.on_device != 0),
        queues(cuda::map_queues(nic.queues)),
        registers(cuda::map_registers(nic.queues)) {
    end.queue = {.requests = queues.find(static_cast<std::byte*>(nic.queues.requests)),
                 .doorbell_record = queues.find(nic.queues.send_record),
                 .registers = registers.find(nic.queues.registers),
                 .blocks = nic.queues.blocks,
                 .qpn = nic.queues.qpn,
                 .half_bytes = nic.queues.half_bytes,
                 .blueflame = nic.queues.blueflame != 0 && nic.queues.half_bytes >= rdma::kBlockBytes};
    end.completions = {.entries = queues.find(static_cast<rdma::CompletionEntry*>(nic.queues.completions)),
                       .doorbell_record = queues.find(nic.queues.completion_record),
                       .count = nic.queues.completion_count};
    end.memory = memory.begin();
    end.cursor = cursor.get();
    end.mailbox = cuda::on_device(mailbox.get());
    end.local_address = reinterpret_cast<std::uintptr_t>(nic.memory);
    end.remote_address = nic.remote_address;
    end.stride = fhbn::slot_stride(preamble.message_bytes);
    end.timeout_ns = static_cast<std::uint64_t>(nic.timeout_ns);
    end.local_key = nic.local_key;
    end.remote_key = nic.remote_key;
    end.slot_count = preamble.slots;
    end.sends = nic.side == LAMINA_CUDA_CHANNEL_SENDS;
  }

  cuda::MappedRing memory;
  cuda::MappedPages queues;
  cuda::MappedPages registers;
  cuda::NicEnd end{};
};

namespace lamina::fhbn::cuda {

NicEnd& end_of(lamina_cuda_nic_end& retained) { return retained.end; }

namespace {

void require_end(const lamina_cuda_nic_end* end) { require(end != nullptr, "the NIC's end is missing"); }

lamina_cuda_status enqueue(lamina_cuda_nic_end* end, void (*kernel)(NicEnd), lamina_cuda_stream stream,
                           const char* doing) {
  return guarded([&] {
    require_end(end);
    launch(entry_of(kernel), grid_of(1), kWarpThreads, 0, stream, end->end, doing);
  });
}

[[noreturn]] void throw_failure(const NicMailbox::Report& report, bool sends, const std::string& peer) {
  if (report.closed != 0) {
    throw Failure{LAMINA_CUDA_CHANNEL_CLOSED, wait_sentence(Fault::kClosed, sends, peer)};
  }
  if (report.trouble == NicTrouble::kFailed) {
    const rdma::Completed completed{true, static_cast<rdma::Syndrome>(report.syndrome),
                                    static_cast<std::uint8_t>(report.vendor_syndrome)};
    throw Failure{LAMINA_CUDA_NIC_FAILED, rdma::sentence_of(completed, peer)};
  }
  if (report.trouble == NicTrouble::kAborted) {
    throw Failure{LAMINA_CUDA_CHANNEL_LOST, peer + " has ended, and the NIC was not waited for"};
  }
  throw Failure{LAMINA_CUDA_CHANNEL_LATE,
                rdma::sentence_of(rdma::NicFault::kStuck, peer, "its queue stands still")};
}

}  // namespace

}  // namespace lamina::fhbn::cuda

lamina_cuda_status lamina_cuda_nic_create(const lamina_cuda_nic* nic, lamina_cuda_nic_end** end) {
  return cuda::guarded([&] {
    cuda::require_nic(nic);
    const fhbn::Preamble preamble = cuda::checked(*nic);
    cuda::require(end != nullptr, "there is nowhere to put the NIC's end");
    cuda::require_device();
    cuda::load_kernels({cuda::entry_of(&cuda::post), cuda::entry_of(&cuda::poll_nic)},
                       "loading the NIC's kernels");
    *end = std::make_unique<lamina_cuda_nic_end>(*nic, preamble).release();
  });
}

lamina_cuda_status lamina_cuda_nic_destroy(lamina_cuda_nic_end* end, lamina_cuda_nic_left* left) {
  if (left != nullptr) *left = {};
  return cuda::guarded([&] {
    cuda::require_end(end);
    cuda::require(left != nullptr, "there is nowhere to put what the NIC's end leaves");
    const std::unique_ptr<lamina_cuda_nic_end> departed(end);
    cuda::NicCursor last{};
    fhbn::Side peer{};
    const cudaError_t waited = departed->stop_and([&] {
      const cudaError_t copied =
          cudaMemcpy(&last, departed->cursor.get(), sizeof last, cudaMemcpyDeviceToHost);
      if (copied != cudaSuccess) return copied;
      return cudaMemcpy(&peer, departed->end.peer_line(), fhbn::kLineBytes, cudaMemcpyDefault);
    });
    cuda::check(waited, "waiting for the last kernels that post");
    *left = cuda::left_by(last, peer);
  });
}

lamina_cuda_status lamina_cuda_nic_post(lamina_cuda_nic_end* end, lamina_cuda_stream stream) {
  if (end != nullptr && end->end.sends) return LAMINA_CUDA_OK;
  return cuda::enqueue(end, &cuda::post, stream, "posting to the NIC");
}

lamina_cuda_status lamina_cuda_nic_poll(lamina_cuda_nic_end* end, lamina_cuda_stream stream) {
  return cuda::enqueue(end, &cuda::poll_nic, stream, "waiting for the NIC");
}

lamina_cuda_status lamina_cuda_nic_check(lamina_cuda_nic_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    const cuda::NicMailbox::Report& report = end->mailbox->report;
    if (fhbn::load_acquire(report.trouble) != cuda::NicTrouble::kNone)
      cuda::throw_failure(report, end->end.sends, end->peer);
  });
}

lamina_cuda_status lamina_cuda_nic_abort(lamina_cuda_nic_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    end->stop();
  });
}
