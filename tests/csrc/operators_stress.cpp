// Drives the operators at random beside the same steps written down one by one, for every instruction set of
// this processor. Meant for a sanitized build: rows of odd widths end where their memory does. Exits with 1
// on a mismatch.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expect.hpp"
#include "operators/kernels.hpp"
#include "operators/product.hpp"
#include "operators/team.hpp"

namespace {

using namespace lamina::operators;
using lamina::attention::available_isas;
using lamina::attention::bytes_of;
using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

// Numbers as memory has them, and as floats.
class Numbers {
public:
  Numbers(std::size_t count, DType dtype) : dtype_(dtype), bytes_(count * bytes_of(dtype)) {}

  std::size_t size() const { return bytes_.size() / bytes_of(dtype_); }
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }

  float operator[](std::size_t i) const {
    if (dtype_ == DType::kFloat32) {
      float x;
      std::memcpy(&x, bytes_.data() + i * 4, 4);
      return x;
    }
    const std::uint16_t bits = half(i);
    if (dtype_ == DType::kBFloat16) {
      const std::uint32_t wide = std::uint32_t{bits} << 16;
      float x;
      std::memcpy(&x, &wide, 4);
      return x;
    }
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    return static_cast<float>(bits >> 15 != 0 ? -value : value);
  }

  std::uint16_t half(std::size_t i) const {
    std::uint16_t bits;
    std::memcpy(&bits, bytes_.data() + i * 2, 2);
    return bits;
  }

  void set_bits(std::size_t i, std::uint32_t bits) {
    std::memcpy(bytes_.data() + i * bytes_of(dtype_), &bits, bytes_of(dtype_));
  }

  // Of moderate size: no step overflows, and differences show.
  static Numbers random(Random& random, std::size_t count, DType dtype) {
    Numbers made(count, dtype);
    std::uniform_real_distribution<float> uniform(-4.0f, 4.0f);
    for (std::size_t i = 0; i < count; ++i) made.set_bits(i, nearest(uniform(random), dtype));
    return made;
  }

  static std::uint32_t nearest(float x, DType dtype) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (dtype == DType::kFloat32) return bits;
    if (dtype == DType::kBFloat16) return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const auto half = static_cast<_Float16>(x);  // rounds to the nearest, ties to even
    std::uint16_t short_bits;
    std::memcpy(&short_bits, &half, 2);
    return short_bits;
  }

private:
  DType dtype_;
  Bytes bytes_;
};

float as_stored(float x, DType dtype) {
  Numbers one(1, dtype);
  one.set_bits(0, Numbers::nearest(x, dtype));
  return one[0];
}

std::string named(const char* what, Isa isa, DType dtype) {
  return std::string(what) + ", " + lamina::attention::name_of(isa) + ", dtype " +
         std::to_string(static_cast<int>(dtype));
}

void check_norm(Random& random, Isa isa, DType dtype, int lanes, std::size_t width, bool with_sum) {
  const std::size_t rows = 1 + random() % 4;
  const Numbers x = Numbers::random(random, rows * width, dtype),
                added = Numbers::random(random, rows * width, dtype);
  const Numbers weight = Numbers::random(random, width, dtype);
  Numbers sum(rows * width, dtype), out(rows * width, dtype);
  const bool first = random() % 2 == 0, centred = random() % 3 == 0;
  const NormShape shape{width, 1e-6f, centred, first, false, lanes};
  const std::size_t stride = width * bytes_of(dtype);
  functions_for(isa, dtype)
      .norm({shape,
             {x.data(), rows, stride, 0},
             with_sum ? added.data() : nullptr,
             sum.data(),
             weight.data(),
             out.data()},
            0, rows);
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<double> value(width);
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t at = row * width + i;
      const float whole = with_sum ? as_stored(x[at] + added[at], dtype) : x[at];
      if (with_sum) expect(sum[at] == whole, named("the sum before a norm", isa, dtype));
      value[i] = whole;
      mean += whole / static_cast<double>(width);
    }
    for (double& one : value) {
      if (centred) one -= mean;
      squares += one * one;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    const double step = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kBFloat16 ? 1.0 / 128 : 1.0 / 1024;
    for (std::size_t i = 0; i < width; ++i) {
      const double wanted = value[i] * scale * weight[i];
      expect(std::abs(out[row * width + i] - wanted) <= step * (1e-3 + std::abs(wanted)) + 1e-5,
             named("a norm", isa, dtype));
    }
  }
}

void check_rotary(Random& random, Isa isa, DType dtype) {
  const std::size_t heads = 1 + random() % 3, rotated = 2 * (1 + random() % 40), rows = 1 + random() % 3;
  const std::size_t head_dim = rotated + random() % 9, half = rotated / 2;
  const bool separate = random() % 3 == 0, pairs = !separate && random() % 2 == 0;
  const bool half_tables = !pairs && random() % 2 == 0, wide = random() % 2 == 0;
  const std::size_t table = half_tables ? half : rotated;
  const Numbers x = Numbers::random(random, rows * heads * head_dim, dtype);
  const Numbers cos = Numbers::random(random, rows * table, dtype),
                sin = Numbers::random(random, rows * table, dtype);
  Numbers out(x.size(), dtype);
  const std::size_t size = bytes_of(dtype);
  const RotaryTask task{{heads, head_dim, rotated, pairs, separate, half_tables, wide, false},
                        {x.data(), heads, head_dim * size, heads * head_dim * size},
                        cos.data(),
                        sin.data(),
                        table * size,
                        out.data()};
  functions_for(isa, dtype).rotary(task, 0, rows);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t from = (row * heads + head) * head_dim;
      for (std::size_t i = 0; i < head_dim; ++i) {
        float wanted = x[from + i];
        if (i < rotated) {
          const bool second = pairs ? i % 2 == 1 : i >= half;
          const std::size_t other = pairs ? i ^ 1 : second ? i - half : i + half;
          auto place = [&](std::size_t of) { return separate ? of % half * 2 + of / half : of; };
          const std::size_t number = row * table + (half_tables ? i % half : i);
          float here = x[from + place(i)] * cos[number], there = x[from + place(other)] * sin[number];
          if (!wide) here = as_stored(here, dtype), there = as_stored(there, dtype);
          wanted = as_stored(second ? here + there : here - there, dtype);
        }
        expect(out[from + i] == wanted, named("a rotation", isa, dtype));
      }
    }
  }
}

void check_gate(Random& random, Isa isa, DType dtype) {
  const std::size_t width = 1 + random() % 1300, rows = 1 + random() % 3;
  std::vector<std::uint16_t> table(1 << 16);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::uint16_t>(i ^ 1);
  const Numbers both = Numbers::random(random, rows * 2 * width, dtype);  // gate and up side by side
  Numbers out(rows * width, dtype), active(1, dtype);
  const std::size_t size = bytes_of(dtype), stride = 2 * width * size;
  functions_for(isa, dtype)
      .gate({table.data(),
             width,
             {both.data(), 1, 0, stride},
             {both.data() + width * size, 1, 0, stride},
             out.data()},
            0, rows);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < width; ++i) {
      active.set_bits(0, table[both.half(row * 2 * width + i)]);
      const float wanted = as_stored(active[0] * both[row * 2 * width + width + i], dtype);
      expect(out[row * width + i] == wanted, named("a gate", isa, dtype));
    }
  }
}

void check_choice(Random& random, Isa isa, DType dtype) {
  const std::size_t width = 1 + random() % 700, rows = 1 + random() % 4;
  Numbers x(rows * width, dtype);
  const int kind =
      static_cast<int>(random() % 3);  // any bits, NaN among them; few numbers; zeros of both signs
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto sign = static_cast<std::uint32_t>(random() % 2) << (bytes_of(dtype) * 8 - 1);
    const auto some = static_cast<float>(random() % 5);
    x.set_bits(i, kind == 0   ? static_cast<std::uint32_t>(random())
                  : kind == 1 ? Numbers::nearest(some - 7, dtype)
                              : sign);
  }
  std::vector<std::int64_t> out(rows);
  functions_for(isa, dtype).choice({width, x.data(), out.data()}, 0, rows);
  for (std::size_t row = 0; row < rows; ++row) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < width; ++i) {
      const float now = x[row * width + best], one = x[row * width + i];
      if (!std::isnan(now) && (std::isnan(one) || one > now)) best = i;
    }
    expect(out[row] == static_cast<std::int64_t>(best), named("a choice", isa, dtype));
  }
}

// Every row once, however many threads there are; libgomp is in this program only if something else needs it.
// Rows by a matrix in panels, by whoever has such products.
void check_product(Random& random, Isa isa) {
  const Product* product = product_for(isa);
  if (product == nullptr) return;
  const std::size_t rows = 1 + random() % 70, inputs = kPanel * (1 + random() % 6);
  const std::size_t outputs = kPanel * (1 + random() % 5), stride = inputs + random() % 40;
  constexpr DType kDType = DType::kBFloat16;
  const Numbers x = Numbers::random(random, (rows - 1) * stride + inputs, kDType);
  const Numbers panels = Numbers::random(random, inputs * outputs, kDType);
  const Numbers bias = Numbers::random(random, outputs, kDType);
  Numbers out(rows * outputs, kDType);
  const bool with_bias = random() % 2 == 0;
  auto at = [](const Numbers& numbers) { return reinterpret_cast<const BFloat16*>(numbers.data()); };
  multiply(*product, {at(panels), with_bias ? at(bias) : nullptr, inputs, outputs}, at(x), stride, rows,
           reinterpret_cast<BFloat16*>(out.data()));
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < outputs; ++o) {
      double sum = with_bias ? bias[o] : 0.0, size = std::fabs(sum);
      for (std::size_t i = 0; i < inputs; ++i) {
        const std::size_t tile = o / kPanel * (inputs / kPanel * 2) + i / kPanel * 2 + o % kPanel / kTileRows;
        const double term = double{x[row * stride + i]} *
                            panels[tile * 512 + i % kPanel / 2 * kPanel + o % kTileRows * 2 + i % 2];
        sum += term;
        size += std::fabs(term);
      }
      const double off = std::fabs(out[row * outputs + o] - sum);
      expect(off <= std::fabs(sum) / 256 + size * 1e-5, named("a product", isa, kDType));
    }
  }
}

void check_team() {
  for (const std::size_t rows : {1, 2, 3, 1000}) {
    std::vector<int> times(rows);
    share(rows, kAlone, [&](std::size_t first, std::size_t last) {
      for (std::size_t row = first; row < last; ++row) ++times[row];
    });
    expect(times == std::vector<int>(rows, 1), "rows are shared out");
  }
}

}  // namespace

int main() {
  Random random(20261124);
  check_team();
  for (const Isa isa : available_isas()) {
    for (int round = 0; round < 40; ++round) check_product(random, isa);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (int round = 0; round < 40; ++round) {
        // Narrower vectors than an instruction set's are another one's.
        const int least = isa == Isa::kBaseline ? 4 : 8;
        for (int lanes = least; lanes <= 16; lanes *= 2) {
          check_norm(random, isa, dtype, lanes, 16 + random() % 2100, round % 2 == 0);
        }
        check_rotary(random, isa, dtype);
        if (dtype != DType::kFloat32) check_gate(random, isa, dtype);
        check_choice(random, isa, dtype);
      }
    }
  }
  std::puts("operators_stress: ok");
}
