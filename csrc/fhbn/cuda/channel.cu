#include <algorithm>
#include <memory>
#include <string>

#include "cuda/runtime.hpp"
#include "fhbn/cuda/arguments.hpp"
#include "fhbn/cuda/channel.h"
#include "fhbn/cuda/mapped.hpp"
#include "fhbn/cuda/outcome.hpp"
#include "fhbn/cuda/receive.cuh"
#include "fhbn/cuda/send.cuh"
#include "fhbn/ordered.hpp"

namespace lamina::fhbn::cuda {

namespace {

Cursor starting_at(std::uint64_t seqno) {
  Cursor cursor{};
  cursor.next = cursor.consumed = seqno;
  return cursor;
}

std::int64_t blocks_for(const Buffers& buffers) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < buffers.count; ++i) bytes = std::max(bytes, buffers.part[i].bytes);
  return static_cast<std::int64_t>(std::clamp(bytes / kBytesPerBlock, std::uint64_t{1}, kMostBlocks));
}

}  // namespace

}  // namespace lamina::fhbn::cuda

namespace cuda = lamina::fhbn::cuda;
namespace fhbn = lamina::fhbn;

struct lamina_cuda_channel_end : cuda::OwnedEnd<cuda::Mailbox, cuda::Cursor> {
  lamina_cuda_channel_end(const lamina_cuda_channel& channel, const fhbn::Preamble& shape)
      : OwnedEnd(channel.peer, cuda::starting_at(shape.first_seqno)),
        preamble(shape),
        sends(channel.side == LAMINA_CUDA_CHANNEL_SENDS),
        memory(channel.memory, channel.bytes, channel.on_device != 0),
        host_ring(channel.on_device != 0 ? nullptr : static_cast<fhbn::Ring*>(channel.memory)) {
    end.ring = reinterpret_cast<fhbn::Ring*>(memory.begin());
    end.slots = memory.begin() + fhbn::kSlotsOffset;
    end.cursor = cursor.get();
    end.mailbox = cuda::on_device(mailbox.get());
    end.message_bytes = preamble.message_bytes;
    end.stride = fhbn::slot_stride(preamble.message_bytes);
    end.timeout_ns = static_cast<std::uint64_t>(channel.timeout_ns);
    end.slot_count = preamble.slots;
    end.epoch = preamble.epoch;
    // From now on the peer does not count on being woken.
    if (host_ring != nullptr) fhbn::store_release(own_line().unheard, std::uint32_t{1});
  }

  fhbn::Side& own_line() const { return sends ? host_ring->published : host_ring->consumed; }

  fhbn::Preamble preamble;
  bool sends;
  cuda::MappedRing memory;
  fhbn::Ring* host_ring;  // none where a NIC alone carries this end's messages to the peer
  cuda::End end{};
  lamina_cuda_nic_end* nic = nullptr;
};

namespace lamina::fhbn::cuda {

namespace {

using Handle = lamina_cuda_channel_end;

void require_end(const Handle* end) { require(end != nullptr, "the channel's end is missing"); }

void require_side(const Handle* end, bool sends) {
  require_end(end);
  require(end->sends == sends,
          sends ? "this end of the channel receives: it cannot send" : "this end of the channel only sends");
}

lamina_cuda_status receive(Handle* end, const lamina_cuda_channel_buffer* into, std::int32_t count,
                           void (*kernel)(FetchArgs), cudaStream_t stream, const char* doing) {
  return guarded([&] {
    require_side(end, false);
    const FetchArgs args{end->end, checked_buffers(into, count)};
    launch(entry_of(kernel), grid_of(blocks_for(args.into)), kCopyThreads, 0, stream, args, doing);
  });
}

}  // namespace

}  // namespace lamina::fhbn::cuda

lamina_cuda_status lamina_cuda_channel_create(const lamina_cuda_channel* channel,
                                              lamina_cuda_channel_end** end) {
  return cuda::guarded([&] {
    cuda::require_channel(channel);
    cuda::require(end != nullptr, "there is nowhere to put the channel's end");
    const fhbn::Preamble preamble = cuda::checked_preamble(*channel);
    cuda::require_device();
    cuda::load_kernels({cuda::entry_of(&cuda::send), cuda::entry_of(&cuda::recv), cuda::entry_of(&cuda::poll),
                        cuda::entry_of(&cuda::fetch), cuda::entry_of(&cuda::give_back)},
                       "loading the channel's kernels");
    *end = std::make_unique<lamina_cuda_channel_end>(*channel, preamble).release();
  });
}

lamina_cuda_status lamina_cuda_channel_attach(lamina_cuda_channel_end* end, lamina_cuda_nic_end* nic) {
  return cuda::guarded([&] {
    cuda::require(nic != nullptr, "the NIC's end is missing");
    const cuda::NicEnd& notified = cuda::end_of(*nic);
    cuda::require_side(end, notified.sends);
    end->end.nic = notified;
    end->nic = nic;
  });
}

lamina_cuda_status lamina_cuda_channel_share(lamina_cuda_channel_end* end, uint32_t* fate) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    cuda::require(fate != nullptr, "there is no word to share");
    end->end.fate = end->end.nic.fate = fate;
    if (end->nic != nullptr) cuda::end_of(*end->nic).fate = fate;
  });
}

lamina_cuda_status lamina_cuda_channel_destroy(lamina_cuda_channel_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    const std::unique_ptr<lamina_cuda_channel_end> departed(end);
    const cudaError_t waited = departed->stop_and([] { return cudaSuccess; });
    // Whatever the device's state, notify the peer; nothing is written after this.
    if (departed->host_ring != nullptr) fhbn::store_release(departed->own_line().state, fhbn::State::kClosed);
    cuda::check(waited, "waiting for the channel's last kernels");
  });
}

lamina_cuda_status lamina_cuda_channel_send(lamina_cuda_channel_end* end,
                                            const lamina_cuda_channel_buffer* parts, int32_t count,
                                            lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    cuda::require_side(end, true);
    const cuda::SendArgs args{end->end, cuda::checked_buffers(parts, count)};
    cuda::require_room(args.parts, end->preamble.message_bytes, end->peer);
    cuda::launch(cuda::entry_of(&cuda::send), cuda::grid_of(cuda::blocks_for(args.parts)), cuda::kCopyThreads,
                 0, stream, args, "sending a message");
  });
}

lamina_cuda_status lamina_cuda_channel_poll(lamina_cuda_channel_end* end, lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    cuda::launch(cuda::entry_of(&cuda::poll), cuda::grid_of(1), 1, 0, stream, end->end,
                 "waiting for a message");
  });
}

lamina_cuda_status lamina_cuda_channel_fetch(lamina_cuda_channel_end* end,
                                             const lamina_cuda_channel_buffer* into, int32_t count,
                                             lamina_cuda_stream stream) {
  return cuda::receive(end, into, count, &cuda::fetch, stream, "fetching a message");
}

lamina_cuda_status lamina_cuda_channel_give_back(lamina_cuda_channel_end* end, lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    cuda::launch(cuda::entry_of(&cuda::give_back), cuda::grid_of(1), 1, 0, stream, end->end,
                 "giving back a slot");
  });
}

lamina_cuda_status lamina_cuda_channel_recv(lamina_cuda_channel_end* end,
                                            const lamina_cuda_channel_buffer* into, int32_t count,
                                            lamina_cuda_stream stream) {
  return cuda::receive(end, into, count, &cuda::recv, stream, "receiving a message");
}

lamina_cuda_status lamina_cuda_channel_describe(lamina_cuda_channel_end* end,
                                                const lamina_cuda_channel_message** message) {
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    cuda::require(message != nullptr, "there is nowhere to put the message's address");
    *message = &end->cursor.get()->message;
  });
}

lamina_cuda_status lamina_cuda_channel_check(lamina_cuda_channel_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    const cuda::Mailbox::Report& report = end->mailbox->report;
    if (fhbn::load_acquire(report.fault) == cuda::Fault::kNone) return;
    throw cuda::Failure{cuda::status_of(report.fault), cuda::notified(report, end->sends, end->peer)};
  });
}

lamina_cuda_status lamina_cuda_channel_abort(lamina_cuda_channel_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    end->stop();
  });
}
