#pragma once

#include <vector>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/kernel.hpp"
#include "sim/h2m2/load.hpp"

namespace lamina::h2m2 {

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

// How long the sublayers of one layer take at one side, by the number of heads that are there.
class Sublayers {
public:
  Sublayers(const Board& board, const Side& memory, int chips, const Shape& shape);

  SideTime qkv(int heads, const Moment& moment, bool translated = false) const;
  SideTime attention(int groups, const Moment& moment, bool translated = false) const;
  SideTime fc(int heads, const Moment& moment, bool translated = false) const;
  // Once an iteration; its columns are split as fc's heads are.
  SideTime lm_head(int heads, const Moment& moment, bool translated = false) const;

  const Chips& chips() const { return chips_; }
  const Shape& shape() const { return shape_; }

private:
  SideTime one(const Gemm& matrix, const Moment& moment, bool translated) const;

  Chips chips_;
  Shape shape_;
  // By number of heads.
  std::vector<Gemm> qkv_, projection_, up_, down_, lm_head_;
};

}  // namespace lamina::h2m2
