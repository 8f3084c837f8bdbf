#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fhbn/process.hpp"
#include "fhbn/rdma/ibverbs.hpp"

namespace lamina::fhbn::rdma {

// The address of an RDMA device's port in its network.
struct PortAddress {
  std::uint16_t lid;
  abi::Gid gid;
};

// An opened RDMA device with one port that is up, and what is allocated on it for one channel's end.
class VerbsDevice {
public:
  // `name`: of a device, or of a device and its port as in mlx5_0:1; the first that is up if it is empty.
  // ChannelError says what keeps it from being used.
  static std::shared_ptr<VerbsDevice> open(const std::string& name);

  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const std::string& name() const { return name_; }  // with the port
  abi::Context* context() const { return context_; }
  abi::ProtectionDomain* domain() const { return domain_; }
  const abi::PortAttributes& port() const { return attributes_; }
  std::uint8_t port_number() const { return port_; }
  // Whether packets are routed by GID: always on Ethernet, and on InfiniBand where the port asks for it, as a
  // virtual function's may.
  bool is_routed() const {
    return attributes_.link_layer == abi::kLinkLayerEthernet ||
           (attributes_.flags & abi::kRouteRequired) != 0;
  }
  PortAddress address() const { return {attributes_.lid, gid_.gid}; }
  std::uint8_t gid_index() const { return static_cast<std::uint8_t>(gid_.index); }

private:
  VerbsDevice(std::string name, abi::Context* context) : name_(std::move(name)), context_(context) {}
  void allocate();
  // Why this port cannot be used; nothing if it can.
  std::string take_port(std::uint8_t port);
  bool take_gid();

  std::string name_;
  abi::Context* context_;
  abi::ProtectionDomain* domain_ = nullptr;
  std::uint8_t port_ = 0;
  abi::PortAttributes attributes_{};
  abi::GidEntry gid_{};
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
