#include "sim/h2m2/search.hpp"

#include <algorithm>
#include <bit>
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

void trim(const std::vector<double>& values, Range& range) {
  const auto from = values.begin() + range.from;
  range.to = static_cast<int>(std::min_element(from, values.begin() + range.to + 1) - values.begin());
}

// The best heads of qkv and fc to have on the HBM side, by the room that attention leaves on both.
struct Weights {
  int qkv = 0;
  int fc = 0;
  double ns = std::numeric_limits<double>::infinity();
};

class WeightSearch {
public:
  WeightSearch(const std::vector<double>& qkv, Range qkv_range, const LeastOf& fc, Range fc_range,
               const Footprint& unit)
      : qkv_(qkv),
        qkv_range_(qkv_range),
        fc_(fc),
        fc_range_(fc_range),
        heads_(static_cast<int>(qkv.size()) - 1),
        least_fc_(fc[fc.between(fc_range.from, fc_range.to)]),
        unit_(unit) {}

  Weights best(double hbm, double lpddr) const {
    const auto hbm_left = [&](int q) { return hbm - q * unit_.qkv; };
    const auto lpddr_left = [&](int q) { return lpddr - (heads_ - q) * unit_.qkv; };
    Window window(Pieces(unit_.fc, heads_), hbm_left(qkv_range_.from), lpddr_left(qkv_range_.from));
    Weights best;
    for (int q = qkv_range_.from; q <= qkv_range_.to; ++q) {
      if (qkv_[static_cast<std::size_t>(q)] + least_fc_ >= best.ns) continue;
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
  const LeastOf& fc_;
  Range fc_range_;
  int heads_;
  double least_fc_;
  Footprint unit_;
};

}  // namespace

Ranges all_mappings(const Shape& shape) { return {{0, shape.heads}, {0, shape.kv_heads}, {0, shape.heads}}; }

std::optional<Mapping> fastest(const Times& times, const Moment& moment, const Room& room,
                               const Ranges& asked) {
  const Shape& shape = times.shape();
  const double layers = shape.layers;
  const auto qkv = table(shape.heads, [&](int n) { return layers * times.qkv_ns(n, moment); });
  const auto attention = table(shape.kv_heads, [&](int n) { return layers * times.attention_ns(n, moment); });
  const LeastOf fc(table(shape.heads, [&](int n) {
    return layers * times.fc_ns(n, moment) + (shape.vocab > 0 ? times.lm_head_ns(n, moment) : 0);
  }));
  // More in HBM than is best for a sublayer is of use only where LPDDR has no room for the rest.
  const bool roomy = total_bytes(shape, room.unit) <= room.lpddr_bytes;
  Ranges ranges = asked;
  if (roomy) {
    trim(qkv, ranges.qkv);
    trim(attention, ranges.attention);
  }
  const WeightSearch search(qkv, ranges.qkv, fc, ranges.fc, room.unit);
  double best = std::numeric_limits<double>::infinity();
  // With more of attention in HBM there is less room for weights: these only get slower.
  double least_weights = 0;
  std::optional<Mapping> found;
  for (int a = ranges.attention.from; a <= ranges.attention.to; ++a) {
    const double attention_ns = attention[static_cast<std::size_t>(a)];
    if (roomy && attention_ns + least_weights >= best) continue;
    const Weights weights = search.best(room.hbm_bytes - a * room.unit.attention,
                                        room.lpddr_bytes - (shape.kv_heads - a) * room.unit.attention);
    least_weights = weights.ns;
    if (attention_ns + weights.ns >= best) continue;
    best = attention_ns + weights.ns;
    found = Mapping{weights.qkv, a, weights.fc};
  }
  return found;
}

}  // namespace lamina::h2m2
