#include "fhbn/rdma/verbs_device.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

constexpr std::uint8_t kMostPorts = 8;
constexpr std::size_t kMostGids = 1024;

// The library's list of devices, as long as one of them is looked for.
class DeviceList {
public:
  DeviceList() : devices_(ibverbs().get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) ibverbs().free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  std::span<abi::Device* const> devices() const {
    return {devices_, devices_ == nullptr ? 0 : static_cast<std::size_t>(count_)};
  }

private:
  int count_ = 0;
  abi::Device** devices_;
};

struct Wanted {
  std::string device;     // empty: any
  std::uint8_t port = 0;  // 0: any
};

Wanted parsed(const std::string& name) {
  const std::size_t colon = name.find(':');
  Wanted wanted{name.substr(0, colon), 0};
  if (colon == std::string::npos) return wanted;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + colon + 1, end, wanted.port);
  if (error != std::errc() || last != end || wanted.port == 0 || wanted.port > kMostPorts) {
    throw ChannelError("'" + name + "' names no port of an RDMA device: write it as in mlx5_0:1");
  }
  return wanted;
}

// Which address others are to use: the newer kind of packet, then what routers know.
int preference(const abi::GidEntry& entry) {
  if (entry.type != abi::kGidRoceV2) return 0;
  constexpr std::array<std::uint8_t, 12> kIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(kIpv4.begin(), kIpv4.end(), entry.gid.raw)) return 3;
  const bool is_link_local = entry.gid.raw[0] == 0xfe && entry.gid.raw[1] == 0x80;
  return is_link_local ? 1 : 2;
}

}  // namespace

std::shared_ptr<VerbsDevice> VerbsDevice::open(const std::string& name) {
  const Wanted wanted = parsed(name);
  const DeviceList list;
  std::string reasons;
  for (abi::Device* one : list.devices()) {
    const std::string device_name = ibverbs().get_device_name(one);
    if (!wanted.device.empty() && device_name != wanted.device) continue;
    abi::Context* context = ibverbs().open_device(one);
    if (context == nullptr) {
      reasons += "; " + device_name + " cannot be opened: " + std::strerror(errno);
      continue;
    }
    const std::shared_ptr<VerbsDevice> device(new VerbsDevice(device_name, context));
    const std::uint8_t first = wanted.port != 0 ? wanted.port : 1;
    const std::uint8_t last = wanted.port != 0 ? wanted.port : kMostPorts;
    for (std::uint8_t port = first; port <= last; ++port) {
      const std::string reason = device->take_port(port);
      if (reason.empty()) {
        device->allocate();
        return device;
      }
      if (port == first || device->attributes_.state != 0) {
        reasons += "; " + device_name + ":" + std::to_string(port) + reason;
      }
    }
  }
  if (list.devices().empty()) throw ChannelError("this machine has no RDMA device");
  if (reasons.empty()) throw ChannelError("this machine has no RDMA device '" + wanted.device + "'");
  throw ChannelError("no RDMA device can be used" + reasons);
}

std::string VerbsDevice::take_port(std::uint8_t port) {
  attributes_ = {};
  if (ibverbs().query_port(context_, port, &attributes_) != 0) {
    attributes_ = {};
    return " does not exist";
  }
  if (attributes_.state != abi::kPortActive) return " is down";
  port_ = port;
  if (!take_gid() && is_routed()) return " has no address: give its network interface one";
  return "";
}

bool VerbsDevice::take_gid() {
  std::vector<abi::GidEntry> entries(kMostGids);
  const std::ptrdiff_t count =
      ibverbs().query_gid_table(context_, entries.data(), entries.size(), 0, sizeof(abi::GidEntry));
  entries.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  std::erase_if(entries, [this](const abi::GidEntry& entry) { return entry.port != port_; });
  if (entries.empty()) return false;
  gid_ = *std::max_element(entries.begin(), entries.end(),
                           [](const auto& a, const auto& b) { return preference(a) < preference(b); });
  return true;
}

void VerbsDevice::allocate() {
  name_ += ":" + std::to_string(port_);
  domain_ = ibverbs().alloc_pd(context_);
  if (domain_ == nullptr) throw ChannelError(name_ + " gives no protection domain: " + std::strerror(errno));
}

VerbsDevice::~VerbsDevice() {
  if (!owner_.is_here()) return;  // it is still the parent's
  if (domain_ != nullptr) ibverbs().dealloc_pd(domain_);
  ibverbs().close_device(context_);
}

}  // namespace lamina::fhbn::rdma
