#include "fhbn/rdma/mlx5dv.hpp"

#include <dlfcn.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

constexpr const char* kLibrary = "libmlx5.so.1";

Mlx5dv load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ChannelError(std::string(kLibrary) + " cannot be loaded: install rdma-core's ibverbs-providers (" +
                       ::dlerror() + ")");
  }
  const auto found = [&](const char* name) {
    void* function = ::dlsym(library, name);
    if (function == nullptr) {
      throw ChannelError(std::string(kLibrary) + " has no " + name + ": install rdma-core 32 or newer");
    }
    return function;
  };
  return {.is_supported = reinterpret_cast<bool (*)(abi::Device*)>(found("mlx5dv_is_supported")),
          .init_obj = reinterpret_cast<int (*)(abi::Mlx5Objects*, std::uint64_t)>(found("mlx5dv_init_obj"))};
}

// Whether a variable asks libmlx5 for something that it does not show.
bool is_asked(const char* variable) {
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

}  // namespace

const Mlx5dv& mlx5dv() {
  static const Mlx5dv loaded = load();  // tried again by the next call if it throws
  return loaded;
}

void require_mlx5(const VerbsDevice& device) {
  if (!mlx5dv().is_supported(device.context()->device)) {
    throw ChannelError(device.name() + " is no mlx5 NIC: take the engine 'verbs'");
  }
}

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
                   .blueflame = pair.registers.half_bytes != 0 && !is_asked("MLX5_SHUT_UP_BF")},
          .completions = {.entries = static_cast<CompletionEntry*>(completions.entries),
                          .doorbell_record = completions.doorbell_records,
                          .count = completions.count},
          .owner = std::move(connection)};
}

}  // namespace lamina::fhbn::rdma
