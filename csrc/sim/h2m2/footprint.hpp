#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/h2m2/board.hpp"

namespace lamina::h2m2 {

// Exact bytes of a head over all layers; what pages add to them is in Memory::room().
Footprint footprint(const Shape& shape, std::int64_t kv_tokens);

// All of both memories.
Room exact_room(const Board& board, const Shape& shape, const Moment& moment);

// Weights and KV, all heads.
double total_bytes(const Shape& shape, const Footprint& unit);

// What the mapping puts on the HBM side.
double hbm_bytes(const Mapping& mapping, const Shape& shape, const Footprint& unit);

bool fits(const Mapping& mapping, const Shape& shape, const Room& room);

// How many pieces of one size fit: no more than there are, -1 if there is less than no room. A piece of no
// bytes always fits.
class Pieces {
public:
  Pieces(double bytes, int count) : bytes_(bytes), each_(bytes > 0 ? 1 / bytes : 0), count_(count) {}

  double bytes() const { return bytes_; }
  int count() const { return count_; }

  int most_in(double room) const {
    if (room < 0) return -1;
    if (room >= count_ * bytes_) return count_;
    int most = static_cast<int>(room * each_);  // one off at most: the division was rounded
    if ((most + 1) * bytes_ <= room) ++most;
    if (most * bytes_ > room) --most;
    return most;
  }

  // The fewest that leave no more than fit into `room` to the other side; more than there are if none do.
  int least_outside(double room) const { return count_ - most_in(room); }

private:
  double bytes_;
  double each_;
  int count_;
};

// The numbers of pieces that can be on the HBM side, both ends included, while room goes over from HBM to
// LPDDR: both ends only ever fall, so following them costs less than working them out anew.
class Window {
public:
  Window(const Pieces& pieces, double hbm, double lpddr) : bytes_(pieces.bytes()), count_(pieces.count()) {
    set_most(pieces.most_in(hbm));
    set_least(std::max(0, pieces.least_outside(lpddr)));
  }

  // Less room in HBM than the last time, or the same, and more in LPDDR.
  void follow(double hbm, double lpddr) {
    while (most_ >= 0 && in_hbm_ > hbm) set_most(most_ - 1);
    while (least_ > 0 && one_more_outside_ <= lpddr) set_least(least_ - 1);
  }

  int least() const { return least_; }
  int most() const { return most_; }

private:
  void set_most(int most) {
    most_ = most;
    in_hbm_ = most * bytes_;
  }
  void set_least(int least) {
    least_ = least;
    one_more_outside_ = (count_ - least + 1) * bytes_;
  }

  double bytes_;
  int count_;
  int most_, least_;
  double in_hbm_, one_more_outside_;
};

}  // namespace lamina::h2m2
