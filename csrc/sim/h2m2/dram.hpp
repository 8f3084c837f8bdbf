#pragma once

#include <cstdint>
#include <vector>

namespace lamina::h2m2 {

// One kind of DRAM behind a memory's bandwidth; times in nanoseconds. What each number is from is in
// laminabench/catalog/data/drams.toml.
struct DramTiming {
  int channels = 1;
  int groups = 1;  // bank groups of a channel
  int banks_per_group = 1;
  std::int64_t row_bytes = 0;
  std::int64_t burst_bytes = 0;
  int queue = 1;                    // bursts that a channel's controller sees ahead
  double burst_ns = 0;              // on the bus; 0 takes the memory's bandwidth divided over its channels
  double same_group_ns = 0;         // tCCD_L: between two bursts of one bank group
  double activate_ns = 0;           // tRCD
  double precharge_ns = 0;          // tRP
  double open_ns = 0;               // tRAS
  double read_to_precharge_ns = 0;  // tRTP
  double between_rows_ns = 0;       // tRRD
  double four_rows_ns = 0;          // tFAW
  double refresh_every_ns = 0;      // tREFI; 0 for never
  double refresh_ns = 0;            // tRFC, all banks of a channel
};

// Channels with their banks, each with one open row. Consecutive bursts alternate between bank groups, a row
// of each group is one *block* of a channel, and consecutive blocks go to consecutive channels, then to
// consecutive banks. A channel serves in the order of requests, opens rows ahead as far as its queue
// sees, leaves them open, and refreshes all of its banks at once, channels taking turns. Reads and writes are
// identical.
class Dram {
public:
  struct Counts {
    std::int64_t bytes = 0;      // as requested
    std::int64_t bursts = 0;     // as moved: whole ones
    std::int64_t hits = 0;       // requested banks that had the row open
    std::int64_t opened = 0;     // that had none
    std::int64_t conflicts = 0;  // that had another
    std::int64_t refreshes = 0;
  };

  // Throws std::invalid_argument if there is nothing of something.
  explicit Dram(const DramTiming& timing);

  std::int64_t block_bytes() const { return block_bytes_; }

  // When the block's channel has room in its queue.
  double room_at(std::int64_t address) const;

  // When the last burst has left the bus, requested at this time for bytes of one block.
  double serve(std::int64_t address, std::int64_t bytes, double at);

  const Counts& counts() const { return counts_; }

private:
  static constexpr double kNever = -1e18;

  struct Bank {
    std::int64_t row = -1;  // none is open
    double opened = kNever;
    double read = kNever;    // its last burst's command
    double closed = kNever;  // can be opened from here on
  };
  struct Channel {
    std::vector<Bank> banks;     // those of one row of the board are adjacent
    std::vector<double> column;  // of each group, its last burst's command
    std::vector<double> opened;  // the last four, oldest first
    double bus = 0;              // free from here on
    double open_until = kNever;  // no bank can be closed before
    double refresh = 0;          // due
  };

  Channel& channel_of(std::int64_t address);
  double open(Channel& channel, Bank& bank, std::int64_t row, double at);
  void refresh_until(Channel& channel, double at);

  DramTiming timing_;
  std::int64_t block_bytes_;
  std::vector<Channel> channels_;
  Counts counts_;
};

}  // namespace lamina::h2m2
