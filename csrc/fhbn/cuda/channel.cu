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

// A kernel's first launch may load it, and loading may wait for all that runs: for a kernel that waits for a
// message from the one that is being loaded, perhaps.
void load_kernels() {
  cudaFuncAttributes ignored;
  for (const void* entry :
       {entry_of(&await_slot), entry_of(&gather), entry_of(&poll), entry_of(&fetch), entry_of(&give_back)}) {
    check(cudaFuncGetAttributes(&ignored, entry), "loading the channel's kernels");
  }
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

// What the library keeps of an end; the device has its own.
struct lamina_cuda_channel_end {
  explicit lamina_cuda_channel_end(const lamina_cuda_channel& channel)
      : preamble(cuda::checked_preamble(channel)),
        sends(channel.side == LAMINA_CUDA_CHANNEL_SENDS),
        peer(channel.peer),
        ring(static_cast<fhbn::Ring*>(channel.memory)),
        device(cuda::current_device()),
        pinned(channel.memory, channel.bytes),
        mailbox(cuda::host_memory<cuda::Mailbox>()),
        cursor(cuda::device_memory<cuda::Cursor>()) {
    *mailbox = {};
    cuda::Cursor start{};
    start.next = start.consumed = preamble.first_seqno;
    cuda::check(cudaMemcpy(cursor.get(), &start, sizeof start, cudaMemcpyHostToDevice), "setting a cursor");
    cuda::check(cudaStreamSynchronize(nullptr), "setting a cursor");  // the copy may still be under way
    end.ring = cuda::on_device(ring);
    end.slots = reinterpret_cast<std::byte*>(end.ring) + fhbn::kSlotsOffset;
    end.cursor = cursor.get();
    end.mailbox = cuda::on_device(mailbox.get());
    end.message_bytes = preamble.message_bytes;
    end.stride = fhbn::slot_stride(preamble.message_bytes);
    end.timeout_ns = static_cast<std::uint64_t>(channel.timeout_ns);
    end.slot_count = preamble.slots;
    end.epoch = preamble.epoch;
    // From now on the peer does not count on being woken.
    fhbn::store_release(own_line().unheard, std::uint32_t{1});
  }

  fhbn::Side& own_line() const { return sends ? ring->published : ring->consumed; }

  fhbn::Preamble preamble;
  bool sends;
  std::string peer;
  fhbn::Ring* ring;
  int device;
  cuda::Pinned pinned;
  cuda::HostMemory<cuda::Mailbox> mailbox;
  cuda::DeviceMemory<cuda::Cursor> cursor;
  cuda::End end{};
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

void enqueue_poll(const Handle& end, cudaStream_t stream) {
  launch(entry_of(&poll), grid_of(1), 1, 0, stream, end.end, "waiting for a message");
}

void enqueue_fetch(const Handle& end, const Buffers& into, bool give_back, cudaStream_t stream) {
  const FetchArgs args{end.end, into, give_back};
  launch(entry_of(&fetch), grid_of(blocks_for(into)), kCopyThreads, 0, stream, args, "fetching a message");
}

void stop(const Handle& end) { store_release(end.mailbox->abort, std::uint32_t{1}); }

}  // namespace

}  // namespace lamina::fhbn::cuda

lamina_cuda_status lamina_cuda_channel_create(const lamina_cuda_channel* channel,
                                              lamina_cuda_channel_end** end) {
  return cuda::guarded([&] {
    cuda::require_channel(channel);
    cuda::require(end != nullptr, "there is nowhere to put the channel's end");
    cuda::checked_preamble(*channel);
    cuda::require_device();
    cuda::load_kernels();
    *end = std::make_unique<lamina_cuda_channel_end>(*channel).release();
  });
}

lamina_cuda_status lamina_cuda_channel_destroy(lamina_cuda_channel_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    const std::unique_ptr<lamina_cuda_channel_end> gone(end);
    cuda::stop(*gone);
    const int device = cuda::current_device();
    cuda::check(cudaSetDevice(gone->device), "going to the channel's device");
    const cudaError_t waited = cudaDeviceSynchronize();
    cudaSetDevice(device);
    // Whatever has become of the device, the peer is told, and nothing is written behind this.
    fhbn::store_release(gone->own_line().state, fhbn::State::kClosed);
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
    cuda::launch(cuda::entry_of(&cuda::await_slot), cuda::grid_of(1), 1, 0, stream, end->end,
                 "waiting for a slot");
    cuda::launch(cuda::entry_of(&cuda::gather), cuda::grid_of(cuda::blocks_for(args.parts)),
                 cuda::kCopyThreads, 0, stream, args, "sending a message");
  });
}

lamina_cuda_status lamina_cuda_channel_poll(lamina_cuda_channel_end* end, lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    cuda::enqueue_poll(*end, stream);
  });
}

lamina_cuda_status lamina_cuda_channel_fetch(lamina_cuda_channel_end* end,
                                             const lamina_cuda_channel_buffer* into, int32_t count,
                                             lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    cuda::enqueue_fetch(*end, cuda::checked_buffers(into, count), false, stream);
  });
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
  return cuda::guarded([&] {
    cuda::require_side(end, false);
    const cuda::Buffers buffers = cuda::checked_buffers(into, count);
    cuda::enqueue_poll(*end, stream);
    cuda::enqueue_fetch(*end, buffers, true, stream);
  });
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
    throw cuda::Failure{cuda::status_of(report.fault), cuda::told(report, end->sends, end->peer)};
  });
}

lamina_cuda_status lamina_cuda_channel_abort(lamina_cuda_channel_end* end) {
  return cuda::guarded([&] {
    cuda::require_end(end);
    cuda::stop(*end);
  });
}
