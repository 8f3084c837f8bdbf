#include "sim/h2m2/dram.hpp"

#include <algorithm>
#include <stdexcept>

namespace lamina::h2m2 {

Dram::Dram(const DramTiming& timing) : timing_(timing), block_bytes_(timing.row_bytes * timing.groups) {
  if (std::min({timing.channels, timing.groups, timing.banks_per_group, timing.queue}) < 1 ||
      timing.burst_bytes < 1 || timing.row_bytes % timing.burst_bytes != 0 || timing.row_bytes < 1 ||
      timing.burst_ns <= 0) {
    throw std::invalid_argument("a DRAM has channels, banks, and rows of whole bursts that take time");
  }
  channels_.resize(static_cast<std::size_t>(timing.channels));
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_[i];
    channel.banks.resize(static_cast<std::size_t>(timing.groups) * timing.banks_per_group);
    channel.column.assign(static_cast<std::size_t>(timing.groups), kNever);
    channel.opened.assign(4, kNever);
    channel.refresh = timing.refresh_every_ns * static_cast<double>(i + 1) / timing.channels;
  }
}

Dram::Channel& Dram::channel_of(std::int64_t address) {
  return channels_[static_cast<std::size_t>(address / block_bytes_ % timing_.channels)];
}

double Dram::room_at(std::int64_t address) const {
  const auto at = static_cast<std::size_t>(address / block_bytes_ % timing_.channels);
  return channels_[at].bus - timing_.queue * timing_.burst_ns;
}

double Dram::serve(std::int64_t address, std::int64_t bytes, double at) {
  Channel& channel = channel_of(address);
  if (timing_.refresh_every_ns > 0) refresh_until(channel, std::max(at, channel.bus));
  const std::int64_t stripe = address / block_bytes_ / timing_.channels;
  const std::int64_t bank_row = stripe % timing_.banks_per_group;
  const std::int64_t row = stripe / timing_.banks_per_group;
  const std::int64_t offset = address % block_bytes_;
  const std::int64_t first = offset / timing_.burst_bytes;
  const std::int64_t bursts = (offset + bytes - 1) / timing_.burst_bytes - first + 1;
  const auto groups = static_cast<std::int64_t>(timing_.groups);
  const std::int64_t touched = std::min(bursts, groups);

  // The first burst's command is as late as any group's first one needs it to be.
  double start = std::max(at, channel.bus);
  for (std::int64_t i = 0; i < touched; ++i) {
    const std::int64_t group = (first + i) % groups;
    Bank& bank = channel.banks[static_cast<std::size_t>(bank_row * groups + group)];
    double ready = channel.column[static_cast<std::size_t>(group)] + timing_.same_group_ns;
    if (bank.row == row) {
      ++counts_.hits;
    } else {
      ready = std::max(ready, open(channel, bank, row, at) + timing_.activate_ns);
    }
    start = std::max(start, ready - static_cast<double>(i) * timing_.burst_ns);
  }
  for (std::int64_t i = 0; i < touched; ++i) {
    const std::int64_t group = (first + i) % groups;
    const std::int64_t last = i + (bursts - 1 - i) / groups * groups;
    const double command = start + static_cast<double>(last) * timing_.burst_ns;
    channel.column[static_cast<std::size_t>(group)] = command;
    channel.banks[static_cast<std::size_t>(bank_row * groups + group)].read = command;
    channel.open_until = std::max(channel.open_until, command + timing_.read_to_precharge_ns);
  }
  channel.bus = start + static_cast<double>(bursts) * timing_.burst_ns;
  counts_.bytes += bytes;
  counts_.bursts += bursts;
  return channel.bus;
}

// When the row's activation can be commanded.
double Dram::open(Channel& channel, Bank& bank, std::int64_t row, double at) {
  double when = std::max(at, bank.closed);
  if (bank.row >= 0) {
    ++counts_.conflicts;
    const double close =
        std::max({at, bank.opened + timing_.open_ns, bank.read + timing_.read_to_precharge_ns});
    when = close + timing_.precharge_ns;
  } else {
    ++counts_.opened;
  }
  when = std::max(
      {when, channel.opened.back() + timing_.between_rows_ns, channel.opened.front() + timing_.four_rows_ns});
  std::rotate(channel.opened.begin(), channel.opened.begin() + 1, channel.opened.end());
  channel.opened.back() = when;
  channel.open_until = std::max(channel.open_until, when + timing_.open_ns);
  bank.row = row;
  bank.opened = when;
  return when;
}

// Those that fell due, each after what was requested before it: a refresh waits for a block, never within
// one.
void Dram::refresh_until(Channel& channel, double at) {
  while (channel.refresh <= at) {
    const double begin = std::max({channel.refresh, channel.bus, channel.open_until});
    const double done = begin + timing_.precharge_ns + timing_.refresh_ns;
    for (Bank& bank : channel.banks) {
      bank.row = -1;
      bank.closed = done;
    }
    channel.open_until = kNever;
    channel.refresh += timing_.refresh_every_ns;
    ++counts_.refreshes;
    at = std::max(at, done);
  }
}

}  // namespace lamina::h2m2
