#pragma once

#include <cstddef>

#include "operators/numbers.hpp"

namespace lamina::operators {
namespace {

// The sum of a row in the order in which torch adds it up, so that it has the same bits: vectors of `kLanes`
// numbers in turn to four sums, sums of sixteen vectors to sums of the next level, then all of them, and lane
// by lane at last. `vector(at, memory)` is what is summed from place `at` on.
template <typename S, int kLanes>
class TorchSum {
public:
  template <typename F>
  static float of(std::size_t width, F vector) {
    static_assert(kLanes % S::kWidth == 0);
    const std::size_t vectors = width / kLanes, rounds = vectors / kTurns;
    Wide sums[kLevels][kTurns];
    for (auto& level : sums) {
      for (Wide& one : level) one = Wide{};
    }
    std::size_t round = 0;
    while (round + kStep <= rounds) {
      add_rounds(sums[0], round, round + kStep, vector);
      round += kStep;
      for (int level = 1; level < kLevels; ++level) {
        for (int turn = 0; turn < kTurns; ++turn) {
          sums[level][turn].add(sums[level - 1][turn]);
          sums[level - 1][turn] = Wide{};
        }
        if (((round >> (kStepBits * level)) & (kStep - 1)) != 0) break;
      }
    }
    add_rounds(sums[0], round, rounds, vector);
    for (int level = 1; level < kLevels; ++level) {
      for (int turn = 0; turn < kTurns; ++turn) sums[0][turn].add(sums[level][turn]);
    }
    Wide all = sums[0][0];
    for (std::size_t i = rounds * kTurns; i < vectors; ++i) all.add(at(i, vector));
    for (int turn = 1; turn < kTurns; ++turn) all.add(sums[0][turn]);
    float lanes[kLanes], left[kLanes] = {};
    for (int part = 0; part < kParts; ++part) S::store(lanes + part * S::kWidth, all.parts[part]);
    const std::size_t done = vectors * kLanes;
    over<S>(width - done,
            [&](std::size_t from, auto memory) { S::store(left + from, vector(done + from, memory)); });
    float total = 0;
    for (std::size_t i = 0; i < width - done; ++i) total += left[i];
    for (const float lane : lanes) total += lane;
    return total;
  }

private:
  static constexpr int kTurns = 4, kLevels = 4, kStepBits = 4, kParts = kLanes / S::kWidth;
  static constexpr std::size_t kStep = std::size_t{1} << kStepBits;

  struct Wide {
    typename S::Vec parts[kParts];
    Wide() {
      for (auto& part : parts) part = S::zero();
    }
    void add(const Wide& other) {
      for (int i = 0; i < kParts; ++i) parts[i] = S::add(parts[i], other.parts[i]);
    }
  };

  template <typename F>
  static Wide at(std::size_t number, F vector) {
    Wide one;
    for (int i = 0; i < kParts; ++i) one.parts[i] = vector(number * kLanes + i * S::kWidth, Whole<S>{});
    return one;
  }

  template <typename F>
  static void add_rounds(Wide (&sums)[kTurns], std::size_t first, std::size_t last, F vector) {
    Wide a = sums[0], b = sums[1], c = sums[2], d = sums[3];  // in registers
    for (std::size_t round = first; round < last; ++round) {
      a.add(at(round * kTurns, vector));
      b.add(at(round * kTurns + 1, vector));
      c.add(at(round * kTurns + 2, vector));
      d.add(at(round * kTurns + 3, vector));
    }
    sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
  }
};

}  // namespace
}  // namespace lamina::operators
