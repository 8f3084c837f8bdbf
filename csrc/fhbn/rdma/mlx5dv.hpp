#pragma once

#include <cstdint>
#include <memory>

#include "fhbn/rdma/mlx5_writer.hpp"
#include "fhbn/rdma/mlx5dv_abi.hpp"
#include "fhbn/rdma/verbs_connection.hpp"

namespace lamina::fhbn::rdma {

// The functions of libmlx5 that a channel calls.
struct Mlx5dv {
  bool (*is_supported)(abi::Device* device);
  int (*init_obj)(abi::Mlx5Objects* objects, std::uint64_t which);
};

// Loaded when it is first asked for, and never unloaded. ChannelError if this machine has none.
const Mlx5dv& mlx5dv();

// ChannelError unless it is an mlx5 NIC that its library knows.
void require_mlx5(const VerbsDevice& device);

// The queues behind a connection that libibverbs has made on an mlx5 NIC, for requests of our own. From now
// on nothing else posts to it or polls it; its registers are not shared either, since every end opens the
// device for itself. ChannelError if it is another NIC's, or laid out as we do not know it. Not verified on
// hardware.
QueuePair queues_of(std::shared_ptr<VerbsConnection> connection);

}  // namespace lamina::fhbn::rdma
