#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/h2m2/board.hpp"

namespace lamina::h2m2 {

// One kernel on the chips at one memory. Computing and reading overlap (each core has two scratchpads);
// filling and draining the array, the memory's latency and TLB misses do not.
struct KernelTime {
  double compute_ns = 0;
  double dram_ns = 0;
  double fixed_ns = 0;

  double total_ns() const { return std::max(compute_ns, dram_ns) + fixed_ns; }
};

// A weight matrix of so many rows and columns, with what of its time depends on neither batch nor moment.
struct Gemm {
  double rows = 0;
  double columns = 0;  // a share of a matrix need not be whole columns
  double waves = 0;    // tiles that the busiest core works through
  double weight_bytes = 0;
};

// The chips at one memory, which share its bandwidth.
class Chips {
public:
  Chips(const Board& board, const Side& memory, int chips, int element_bytes);

  Gemm matrix(double rows, double columns) const;

  // Bytes that the TLBs of these chips reach.
  double reach_bytes() const { return reach_bytes_; }
  double bytes_per_ns() const { return bytes_per_ns_; }
  double mm_per_ns() const { return mm_per_ns_; }  // multiply-adds of all systolic arrays at their peak
  double mv_per_ns() const { return mv_per_ns_; }  // and of all matrix-vector units

  // A layer's kernels. `translated` adds the TLB misses of streaming the weights or the KV once.
  KernelTime gemm(const Gemm& matrix, double batch, bool translated) const;
  KernelTime attention(const Shape& shape, int groups, const Moment& moment, bool translated) const;

  // Cycles of an array for each tile, spread over the rows that pass through it.
  static double cycles_a_tile(const Board& board, double batch, double passes = 1);

private:
  double misses_ns(double bytes) const;

  Board board_;
  double element_bytes_;
  double cores_;
  double bytes_per_ns_;
  double ns_per_byte_;
  double latency_ns_;
  double misses_at_once_;
  double reach_bytes_;
  double mm_per_ns_;
  double mv_per_ns_;
};

// Kernels one after the other at one side.
struct SideTime {
  double busy_ns = 0;
  double dram_ns = 0;

  SideTime& operator+=(const KernelTime& kernel) {
    busy_ns += kernel.total_ns();
    dram_ns += kernel.dram_ns;
    return *this;
  }
};

// How long the sublayers of one layer take at one side, by the number of heads (KV groups) that are there.
class Sublayers {
public:
  Sublayers(const Board& board, const Side& memory, int chips, const Shape& shape);

  // The LM head's columns are split as fc's heads are.
  SideTime time(Sublayer sublayer, int heads, const Moment& moment, bool translated = false) const;

  const Chips& chips() const { return chips_; }
  const Shape& shape() const { return shape_; }

private:
  struct Matrices {
    Gemm qkv, projection, up, down, lm_head;
  };

  Chips chips_;
  Shape shape_;
  std::vector<Matrices> matrices_;  // by number of heads
};

// How long an iteration takes with both sides at work, each on its own heads.
class Times {
public:
  Times(const Board& board, const Shape& shape);

  // Throws std::invalid_argument if the mapping has more than there is. `translated` adds TLB misses.
  Plan of(const Mapping& mapping, const Moment& moment, bool translated) const;

  // A layer's sublayer, by heads (KV groups) on the HBM side: when the slower side is done. The LM head
  // without its exchange and launch.
  double ns(Sublayer sublayer, int heads, const Moment& moment) const;

  const Board& board() const { return board_; }
  const Shape& shape() const { return shape_; }
  const Sublayers& hbm() const { return hbm_; }
  const Sublayers& lpddr() const { return lpddr_; }

private:
  void add_exchange(Plan& plan, const Moment& moment) const;

  Board board_;
  Shape shape_;
  Sublayers hbm_, lpddr_;
};

// An iteration of which all is computed at one side, by whatever chips are there.
Plan alone(const Board& board, const Sublayers& side, bool at_hbm, const Moment& moment);

}  // namespace lamina::h2m2
