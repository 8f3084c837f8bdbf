#include "sim/h2m2/search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "sim/h2m2/footprint.hpp"

namespace lamina::h2m2 {

namespace {

// Where the least of any stretch of a list is, in two looks: row r has it for every stretch of 2^r.
class LeastOf {
public:
  explicit LeastOf(std::vector<double> values)
      : values_(std::move(values)), size_(static_cast<int>(values_.size())) {
    for (int i = 0; i < size_; ++i) where_.push_back(i);
    for (int half = 1, row = 0; 2 * half <= size_; half *= 2, ++row) {
      where_.resize(where_.size() + values_.size());
      for (int i = 0; i + 2 * half <= size_; ++i) at(row + 1, i) = lower(at(row, i), at(row, i + half));
    }
  }

  double operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }

  int between(int from, int to) const {
    const int row = std::bit_width(static_cast<unsigned>(to - from + 1)) - 1;
    return lower(at(row, from), at(row, to + 1 - (1 << row)));
  }

private:
  int& at(int row, int i) { return where_[static_cast<std::size_t>(row * size_ + i)]; }
  int at(int row, int i) const { return where_[static_cast<std::size_t>(row * size_ + i)]; }
  int lower(int a, int b) const { return (*this)[b] < (*this)[a] ? b : a; }

  std::vector<double> values_;
  std::vector<int> where_;
  int size_;
};

template <typename Time>
std::vector<double> table(int count, Time time) {
  std::vector<double> values(static_cast<std::size_t>(count) + 1);
  for (int n = 0; n <= count; ++n) values[static_cast<std::size_t>(n)] = time(n);
  return values;
}

// The lowest number in the range at which the least is.
int best_of(const std::vector<double>& values, const Range& range) {
  const auto from = values.begin() + range.from;
  return static_cast<int>(std::min_element(from, values.begin() + range.to + 1) - values.begin());
}

// The best heads of qkv and fc to have on the HBM side, by the room that attention leaves on both.
struct Weights {
  int qkv = 0;
  int fc = 0;
  double ns = std::numeric_limits<double>::infinity();
};

class WeightSearch {
public:
  WeightSearch(const std::vector<double>& qkv, Range qkv_range, int best_qkv, const LeastOf& fc,
               Range fc_range, const Footprint& unit)
      : qkv_(qkv),
        qkv_range_(qkv_range),
        best_qkv_(best_qkv),
        fc_(fc),
        fc_range_(fc_range),
        best_fc_(fc.between(fc_range.from, fc_range.to)),
        heads_(static_cast<int>(qkv.size()) - 1),
        unit_(unit) {}

  // Both at their best, whether there is room for that or not.
  double least() const { return qkv_[static_cast<std::size_t>(best_qkv_)] + fc_[best_fc_]; }

  Weights best(double hbm, double lpddr) const {
    if (best_qkv_ * unit_.qkv + best_fc_ * unit_.fc <= hbm &&
        (heads_ - best_qkv_) * unit_.qkv + (heads_ - best_fc_) * unit_.fc <= lpddr) {
      return {best_qkv_, best_fc_, least()};
    }
    const auto hbm_left = [&](int q) { return hbm - q * unit_.qkv; };
    const auto lpddr_left = [&](int q) { return lpddr - (heads_ - q) * unit_.qkv; };
    Window window(Pieces(unit_.fc, heads_), hbm_left(qkv_range_.from), lpddr_left(qkv_range_.from));
    Weights best;
    for (int q = qkv_range_.from; q <= qkv_range_.to; ++q) {
      if (qkv_[static_cast<std::size_t>(q)] + fc_[best_fc_] >= best.ns) continue;
      window.follow(hbm_left(q), lpddr_left(q));
      const int most = std::min(fc_range_.to, window.most());
      const int least = std::max(fc_range_.from, window.least());
      if (least > most) continue;
      const int f = fc_.between(least, most);
      const double ns = qkv_[static_cast<std::size_t>(q)] + fc_[f];
      if (ns < best.ns) best = {q, f, ns};
    }
    return best;
  }

private:
  const std::vector<double>& qkv_;
  Range qkv_range_;
  int best_qkv_;
  const LeastOf& fc_;
  Range fc_range_;
  int best_fc_;
  int heads_;
  Footprint unit_;
};

// Numbers of KV groups on the HBM side that are still to be looked at, and the least cost of weights with
// any of them.
struct Stretch {
  int from;
  int to;
  double weights_ns;
};

}  // namespace

Ranges all_mappings(const Shape& shape) { return {{0, shape.heads}, {0, shape.kv_heads}, {0, shape.heads}}; }

std::optional<Mapping> fastest(const Times& times, const Moment& moment, const Room& room,
                               const Ranges& given) {
  const Shape& shape = times.shape();
  const double layers = shape.layers;
  const auto qkv = table(shape.heads, [&](int n) { return layers * times.ns(Sublayer::kQkv, n, moment); });
  const auto attention =
      table(shape.kv_heads, [&](int n) { return layers * times.ns(Sublayer::kAttention, n, moment); });
  const LeastOf fc(table(shape.heads, [&](int n) {
    return layers * times.ns(Sublayer::kFc, n, moment) +
           (shape.vocab > 0 ? times.ns(Sublayer::kLmHead, n, moment) : 0);
  }));
  // More in HBM than is best for a sublayer is of use only where LPDDR has no room for the rest.
  const bool roomy = total_bytes(shape, room.unit) <= room.lpddr_bytes;
  Ranges ranges = given;
  const int best_qkv = best_of(qkv, given.qkv);
  const int best_attention = best_of(attention, given.attention);
  if (roomy) {
    ranges.qkv.to = best_qkv;
    ranges.attention.to = best_attention;
  }
  const WeightSearch search(qkv, ranges.qkv, best_qkv, fc, ranges.fc, room.unit);
  double best = std::numeric_limits<double>::infinity();
  std::optional<Mapping> match;
  std::vector<Stretch> open{{ranges.attention.from, ranges.attention.to, search.least()}};
  while (!open.empty()) {
    const Stretch stretch = open.back();
    open.pop_back();
    // Attention's time falls up to its best number and rises from there.
    const int nearest = std::clamp(best_attention, stretch.from, stretch.to);
    const double bound = attention[static_cast<std::size_t>(nearest)] + stretch.weights_ns;
    if (bound > best || (match && bound == best && stretch.from > match->attention)) continue;
    const int a = (stretch.from + stretch.to) / 2;
    const Weights weights = search.best(room.hbm_bytes - a * room.unit.attention,
                                        room.lpddr_bytes - (shape.kv_heads - a) * room.unit.attention);
    const double ns = attention[static_cast<std::size_t>(a)] + weights.ns;
    // Of equals the one with the least attention in HBM, in whatever order they are looked at.
    if (ns < best || (match && ns == best && a < match->attention)) {
      best = ns;
      match = Mapping{weights.qkv, a, weights.fc};
    }
    // With more of attention in HBM there is less room for weights: these only get slower, or fit nowhere.
    const double above = roomy ? weights.ns : stretch.weights_ns;
    if (a < stretch.to && std::isfinite(above)) open.push_back({a + 1, stretch.to, above});
    if (a > stretch.from) open.push_back({stretch.from, a - 1, stretch.weights_ns});
  }
  return match;
}

}  // namespace lamina::h2m2
