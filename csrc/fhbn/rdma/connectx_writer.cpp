#include "fhbn/rdma/connectx_writer.hpp"

#include <dlfcn.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/rdma/mlx5dv_abi.hpp"

namespace lamina::fhbn::rdma {

namespace {

// The driver makes room for as many requests with as many bytes in each: four blocks to a request.
constexpr std::uint32_t kRequests = 128;
constexpr std::uint32_t kBlocksEach = blocks_of(inline_segments(kLongInline));
// Drivers round up, and a send queue's every block may get a completion.
constexpr Depth kDepth{kRequests, kLongInline, 2 * kRequests * kBlocksEach};

// The functions of libmlx5 that a channel calls.
struct Mlx5dv {
  bool (*is_supported)(abi::Device* device);
  int (*init_obj)(abi::Mlx5Objects* objects, std::uint64_t which);
};

constexpr const char* kLibrary = "libmlx5.so.1";

Mlx5dv load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ChannelError(std::string(kLibrary) + " cannot be loaded: install rdma-core's ibverbs-providers (" +
                       ::dlerror() + ")");
  }
  const auto symbol = [&](const char* name) {
    void* function = ::dlsym(library, name);
    if (function == nullptr) {
      throw ChannelError(std::string(kLibrary) + " has no " + name + ": install rdma-core 32 or newer");
    }
    return function;
  };
  return {.is_supported = reinterpret_cast<bool (*)(abi::Device*)>(symbol("mlx5dv_is_supported")),
          .init_obj = reinterpret_cast<int (*)(abi::Mlx5Objects*, std::uint64_t)>(symbol("mlx5dv_init_obj"))};
}

// Whether a variable asks libmlx5 for something that it does not show.
bool is_enabled(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") != 0;
}

// What the structures of queue.hpp take for granted.
void require_known_layout(const std::string& device, const abi::Mlx5QueuePair& pair,
                          const abi::Mlx5CompletionQueue& completions) {
  const auto refuse = [&](const std::string& how) {
    throw ChannelError(device + " has queues that are not laid out as the mlx5 engine knows them: " + how);
  };
  if (pair.send.stride != kBlockBytes) refuse("blocks of " + std::to_string(pair.send.stride) + " bytes");
  if (!is_sound(pair.send.count)) refuse(std::to_string(pair.send.count) + " blocks");
  if (pair.registers.half_bytes != 0 && !std::has_single_bit(pair.registers.half_bytes)) {
    refuse("registers of " + std::to_string(pair.registers.half_bytes) + " bytes");
  }
  if (completions.entry_bytes != sizeof(CompletionEntry)) {
    refuse("completions of " + std::to_string(completions.entry_bytes) +
           " bytes (unset MLX5_CQE_SIZE if it is set)");
  }
  if (!std::has_single_bit(completions.count) || completions.count < pair.send.count) {
    refuse(std::to_string(completions.count) + " completions for " + std::to_string(pair.send.count) +
           " blocks");
  }
  if (std::getenv("MLX5_QP_SIGNATURE") != nullptr) refuse("signed requests (unset MLX5_QP_SIGNATURE)");
}

// Loaded on first use, and never unloaded. ChannelError if this machine has none.
const Mlx5dv& mlx5dv() {
  static const Mlx5dv loaded = load();  // tried again by the next call if it throws
  return loaded;
}

// The queues behind a connection that libibverbs has made on an mlx5 NIC, for requests of our own. From now
// on nothing else posts to it or polls it; its registers are not shared either, since every end opens the
// device for itself. ChannelError if it is another NIC's, or laid out as we do not know it. Not verified on
// hardware.
QueuePair queues_of(std::shared_ptr<VerbsConnection> connection) {
  const VerbsDevice& device = connection->device();
  require_mlx5(device);
  abi::Mlx5QueuePair pair{};
  abi::Mlx5CompletionQueue completions{};
  abi::Mlx5Objects objects{};
  objects.pair = connection->pair();
  objects.shown_pair = &pair;
  objects.completions = connection->completions();
  objects.shown_completions = &completions;
  const int error = mlx5dv().init_obj(&objects, abi::kShowQueuePair | abi::kShowCompletionQueue);
  if (error != 0) {
    throw ChannelError(device.name() + " does not show what its queues are made of: " + std::strerror(error));
  }
  require_known_layout(device.name(), pair, completions);
  return {.send = {.requests = static_cast<std::byte*>(pair.send.memory),
                   .doorbell_record = pair.doorbell_records + abi::kSendingRecord,
                   .registers = static_cast<std::uint64_t*>(pair.registers.address),
                   .blocks = pair.send.count,
                   .qpn = connection->pair()->number,
                   .half_bytes = pair.registers.half_bytes,
                   .blueflame = pair.registers.half_bytes != 0 && !is_enabled("MLX5_SHUT_UP_BF")},
          .completions = {.entries = static_cast<CompletionEntry*>(completions.entries),
                          .doorbell_record = completions.doorbell_records,
                          .count = completions.count},
          .owner = std::move(connection)};
}

}  // namespace

void require_mlx5(const VerbsDevice& device) {
  if (!mlx5dv().is_supported(device.context()->device)) {
    throw ChannelError(device.name() + " is no mlx5 NIC: take the engine 'verbs'");
  }
}

ConnectxWriter::ConnectxWriter(std::shared_ptr<VerbsDevice> device, std::shared_ptr<const RingMemory> memory,
                               std::size_t offered_bytes)
    : connection_(
          std::make_shared<VerbsConnection>(std::move(device), std::move(memory), offered_bytes, kDepth)) {}

void ConnectxWriter::connect(const VerbsAddress& peer, const std::string& peer_name, const Quality& quality) {
  connection_->connect(peer, peer_name, quality);
  const RingMemory& memory = connection_->memory();
  const LocalMemory local{static_cast<const std::byte*>(memory.memory()), memory.bytes(),
                          connection_->local_key()};
  // The peer's is of the same shape. How much of it may be written to is its NIC's to know.
  const RemoteMemory remote{peer.memory, memory.bytes(), peer.rkey};
  writer_.emplace(queues_of(connection_), local, remote, peer_name);
}

std::string ConnectxWriter::unconnected() const {
  return connection_->device().name() + ": this end is not connected yet";
}

}  // namespace lamina::fhbn::rdma
