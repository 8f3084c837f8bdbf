#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/load.hpp"

namespace lamina::h2m2 {

enum class Sublayer : std::uint8_t { kQkv, kAttention, kFc };

// Sublayers dealt out to the two sides one after the other, never so that what is still to come fits nowhere:
// weights come in small pieces, KV groups in large ones (Llama 2 has eight).
class Packing {
public:
  Packing(const Shape& shape, const Room& room)
      : hbm_(room.hbm_bytes),
        lpddr_(room.lpddr_bytes),
        pieces_{Pieces(room.unit.qkv, shape.heads), Pieces(room.unit.attention, shape.kv_heads),
                Pieces(room.unit.fc, shape.heads)} {}

  // In this order, each with the feasible number on the HBM side that costs least. `costs` has for each
  // sublayer the number that it would be best to have there and a function of it that rises to both sides of
  // that.
  template <typename Costs>
  std::optional<Mapping> place(const std::array<Sublayer, 3>& order, const Costs& costs) {
    std::array<int, 3> chosen{};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::optional<int> n = choose(order, i, costs);
      if (!n) return std::nullopt;
      const auto s = static_cast<std::size_t>(order[i]);
      chosen[s] = *n;
      take(pieces_[s], *n);
    }
    return Mapping{chosen[0], chosen[1], chosen[2]};
  }

private:
  void take(const Pieces& pieces, int n) {
    hbm_ -= n * pieces.bytes();
    lpddr_ -= (pieces.count() - n) * pieces.bytes();
  }

  const Pieces& at(Sublayer sublayer) const { return pieces_[static_cast<std::size_t>(sublayer)]; }

  // Outwards from the best number, so that the first that is feasible is the cheapest.
  template <typename Costs>
  std::optional<int> choose(const std::array<Sublayer, 3>& order, std::size_t i, const Costs& costs) const {
    const Pieces& pieces = at(order[i]);
    const int most = pieces.most_in(hbm_);
    const int least = std::max(0, pieces.least_beside(lpddr_));
    if (least > most) return std::nullopt;
    int up = std::clamp(costs.best(order[i]), least, most);
    int down = up - 1;
    while (up <= most || down >= least) {
      const bool go_down = up > most || (down >= least && costs.of(order[i], down) <= costs.of(order[i], up));
      const int n = go_down ? down-- : up++;
      Packing rest = *this;
      rest.take(pieces, n);
      if (rest.fits(order, i + 1)) return n;
    }
    return std::nullopt;
  }

  // Whether the sublayers from this one on fit into what is left.
  bool fits(const std::array<Sublayer, 3>& order, std::size_t from) const {
    if (hbm_ < 0 || lpddr_ < 0) return false;
    if (from == order.size()) return true;
    const Pieces& pieces = at(order[from]);
    const int most = pieces.most_in(hbm_);
    for (int n = std::max(0, pieces.least_beside(lpddr_)); n <= most; ++n) {
      Packing rest = *this;
      rest.take(pieces, n);
      if (rest.fits(order, from + 1)) return true;
    }
    return false;
  }

  double hbm_, lpddr_;
  std::array<Pieces, 3> pieces_;
};

}  // namespace lamina::h2m2
