"""Builders of Bessel functions of both kinds, modified ones of the second kind, and Airy's function.

All use Chebyshev series, whose coefficients were computed with 45 digits. Up to x = 8 (2 for K) they expand functions
that are analytic in x^2: J, Y without its logarithm times J, K with its logarithm times I added. Beyond, they expand
the amplitudes P and x Q of Hankel's expansions (Abramowitz and Stegun 9.2.5) in (8 / x)^2, and exp(x) sqrt(x) K in
4 / x; for Airy's function from 4.5 on likewise (10.4.59, 10.4.60).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps

from ingot.ir.node import Node
from ingot.ir.types import f64
from ingot.ops.core.elementwise import Abs, IsNan, Sqrt
from ingot.ops.core.functions import Cos, Exp, Log, Sin
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term

_J0_NEAR = (
    0.31545594294978024, -0.008723442352852221, 0.2651786132033368, -0.37009499387264977, 0.15806710233209725,
    -0.034893769411408884, 0.004819180069467605, -0.00046062616620627504, 3.246032882100508e-05,
    -1.7619469077621507e-06, 7.608163592418782e-08, -2.679253530557673e-09, 7.848696314479465e-11,
    -1.9438346867370164e-12, 4.125320595634374e-14, -7.588508125447546e-16, 1.2218515873961411e-17,
)  # fmt: skip
_J1_NEAR = (
    0.16208969265131623, -0.1489751450676521, 0.1609992623572097, -0.08268049176681791, 0.022213639654966037,
    -0.003646940600769276, 0.0004050337728354822, -3.255554866857259e-05, 1.9858774049915165e-06,
    -9.521984756750436e-08, 3.687133759097148e-09, -1.178026622695885e-10, 3.160154580348003e-12,
    -7.221755239651773e-14, 1.4232144003513942e-15, -2.4441972916190464e-17,
)  # fmt: skip
_Y0_NEAR = (
    -0.06629222640656988, -0.2744743055297453, 0.17903431407718265, 0.26156734625504663, -0.17730201278114358,
    0.04719668959576339, -0.007287962479552079, 0.0007531135932577742, -5.632079141056987e-05,
    3.206532537654801e-06, -1.44072332740187e-07, 5.248794787330516e-09, -1.5837552541812015e-10,
    4.02633081830612e-12, -8.747341203310769e-14, 1.6434898714919468e-15, -2.6977881152566837e-17,
)  # fmt: skip
_Y1_NEAR = (
    -1.6255962351730886, -1.9681658397549548, -1.9753486587649085, 0.714620414201949, 0.5293699560240295,
    -0.2942365440222844, 0.06499275332216367, -0.0085579770829528, 0.0007705719478651246,
    -5.1056551641858577e-05, 2.609462068037386e-06, -1.0637036192893421e-07, 3.5464786569525353e-09,
    -9.86455155995366e-11, 2.3260839371194343e-12, -4.712119764591926e-14, 8.293283216194571e-16,
)  # fmt: skip
_P0 = (
    1.9989206986950374, -0.0005365220468132117, 3.0751847875194745e-06, -5.1705945376060975e-08,
    1.6306464635151382e-09, -7.86409137723707e-11, 5.168262387349193e-12, -4.3045788699253914e-13,
    4.3265957431549404e-14, -5.069034095935236e-15, 6.748072215733873e-16, -1.0011513723467786e-16,
)  # fmt: skip
_Q0 = (
    -0.24889367368539214, 0.0005470815954089319, -5.9315987288485175e-06, 1.4377965798375193e-07,
    -5.817532749493056e-09, 3.376097523734991e-10, -2.565397936797308e-11, 2.404916100281365e-12,
    -2.6690625482579414e-13, 3.4041800321963686e-14, -4.87994410531204e-15, 7.729703176242605e-16,
    -1.3348852171502517e-16, 2.4865952389390515e-17, -4.952892629886516e-18,
)  # fmt: skip
_P1 = (
    2.0018060817200274, 0.0008989898330859408, -3.987284300488908e-06, 6.177633960644299e-08,
    -1.8718907491063067e-09, 8.816898659582339e-11, -5.704863640395645e-12, 4.699195515230542e-13,
    -4.6842237839904895e-14, 5.452674896044717e-15, -7.221180842274018e-16, 1.0667689114335412e-16,
)  # fmt: skip
_Q1 = (
    0.7484445931125652, -0.0007702178839325664, 7.3108922063643636e-06, -1.676782510726674e-07,
    6.583354662120443e-09, -3.749090950541556e-10, 2.8121750359748866e-11, -2.61145253946232e-12,
    2.8774212663332235e-13, -3.649001916061838e-14, 5.206626366226707e-15, -8.215318025458595e-16,
    1.4141084390211833e-16, -2.626761589838529e-17,
)  # fmt: skip
_I0 = (
    3.2058456136159266, 0.638809625651177, 0.03685485969436176, 0.00098287812725148, 1.4983654208927293e-05,
    1.4738449008423848e-07, 1.0114797900674826e-09, 5.1149979020112795e-12, 1.984280622680562e-14,
    6.090516506058955e-17,
)  # fmt: skip
_I1 = (
    1.2835179939823749, 0.1475393201491934, 0.005898742680020788, 0.00011988137174638708,
    1.4739165119093128e-06, 1.2138074968740922e-08, 7.161106692799279e-11, 3.17487931131012e-13,
    1.0962998348773076e-15,
)  # fmt: skip
_K0_NEAR = (
    1.6867954551544446, 0.787078990859296, 0.06152577860244072, 0.0019458946141853283, 3.3247998700597626e-05,
    3.5563825166277007e-07, 2.6056207418988497e-09, 1.3895141631982779e-11, 5.635214661841847e-14,
    1.7966278703136082e-16,
)  # fmt: skip
_K1_NEAR = (
    -0.4585664576810212, -1.4514444639271789, -0.2331381337556394, -0.011231633227874833,
    -0.0002581760262006355, -3.4719237980698115e-06, -3.064684283349565e-08, -1.9122674002717066e-10,
    -8.882779293015399e-13, -3.1915543020248825e-15,
)  # fmt: skip
_K0_FAR = (
    2.4403030820659555, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802,
    1.39498137188765e-05, -1.8317555227191195e-06, 2.766813639445015e-07, -4.660489897687948e-08,
    8.574034017414225e-09, -1.6975345093890614e-09, 3.5773972814003283e-10, -7.957489244477396e-11,
    1.8559491149549264e-11, -4.514597883374519e-12, 1.1403405882073441e-12, -2.9800969231481784e-13,
    8.032890775068375e-14, -2.2275133267462965e-14, 6.340076476276646e-15, -1.848593377920907e-15,
    5.5120559994043335e-16, -1.6782311257549006e-16, 5.2103917776435543e-17,
)  # fmt: skip
_K1_FAR = (
    2.7206261904844427, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162,
    -1.936197974166083e-05, 2.406484947837217e-06, -3.5019606030878126e-07, 5.7410841254500495e-08,
    -1.0345762465678097e-08, 2.0150497551970347e-09, -4.1903547593419254e-10, 9.218315187605315e-11,
    -2.129967838427791e-11, 5.139639673482343e-12, -1.2891739609498229e-12, 3.348419666052243e-13,
    -8.976705182010146e-14, 2.4771544242195988e-14, -7.0198370892147685e-15, 2.038703166239861e-15,
    -6.057047270643018e-16, 1.8380935752430455e-16, -5.689462849193648e-17,
)  # fmt: skip
_AIRY = (
    0.14431135083141697, -0.006017417290296523, -0.118048562839533, -0.04153776894219042, 0.22728633222494557,
    -0.1747604312725635, 0.004141445835586978, 0.07630001330674781, -0.04970304165307667, 0.00548298020799089,
    0.009937846771041712, -0.006130770318124597, 0.0008647722707376692, 0.0007046716460873824,
    -0.00042706958967681603, 6.5603247199538e-05, 3.165014293893545e-05, -1.9212892428379905e-05,
    3.04855446821832e-06, 9.836073631394633e-07, -6.058822331438022e-07, 9.706416261565207e-08,
    2.242371673348273e-08, -1.415804438718868e-08, 2.2644206338511995e-09, 3.9095787594505024e-10,
    -2.5521904026803825e-10, 4.050916659070836e-11, 5.378263473173422e-12, -3.659212121938129e-12,
    5.74489345203962e-13, 5.98061207831702e-14, -4.274250099924226e-14, 6.625431149022808e-15,
    5.4798822899109e-16, -4.1472079826495143e-16, 6.340796797840972e-17, 4.2017026416512046e-18,
    -3.396460558416115e-18,
)  # fmt: skip
_AIRY_RIGHT = (
    1.9896985293922749, -0.005054725345247138, 9.278060884662695e-05, -3.076651192613949e-06,
    1.4357558718161953e-07, -8.473520024066561e-09, 5.96363340493942e-10, -4.8241274688530206e-11,
    4.374121086263806e-12, -4.365904731368745e-13, 4.732263884487545e-14, -5.511851792964206e-15,
    6.840966375171368e-16, -8.986064336361072e-17,
)  # fmt: skip
_AIRY_P = (
    1.9991072033185715, -0.00044255600249022215, 3.7464948785574585e-06, -9.147926787106577e-08,
    4.0685023228430725e-09, -2.6897245359447526e-10, 2.363449618675092e-11, -2.576195886826486e-12,
    3.3274850157582603e-13, -4.9322091688066274e-14, 8.196203733152184e-15, -1.5003542015688562e-15,
    2.9845588289887906e-16, -6.382686146177526e-17,
)  # fmt: skip
_AIRY_Q = (
    0.1379973627493042, -0.00043847415305876955, 7.0285131258204494e-06, -2.4531075470483036e-07,
    1.3871875616806255e-08, -1.0947446912594973e-09, 1.1046844858983291e-10, -1.3475725842508134e-11,
    1.9127441564251805e-12, -3.074037537243461e-13, 5.482078329678447e-14, -1.068281395250709e-14,
    2.2475712780366504e-15, -5.056721949945704e-16, 1.2071941989372259e-16, -3.038483751855352e-17,
    8.020234897573714e-18, -2.210076494801649e-18,
)  # fmt: skip

_FIRST_KIND = ((_J0_NEAR, _P0, _Q0), (_J1_NEAR, _P1, _Q1))
_SECOND_KIND = (_Y0_NEAR, _Y1_NEAR)
_MODIFIED = ((_I0, _K0_NEAR, _K0_FAR), (_I1, _K1_NEAR, _K1_FAR))
_SERIES_LIMIT, _K_SERIES_LIMIT, _AIRY_SERIES_LIMIT = 8.0, 2.0, 4.5
_AIRY_PHASE_LIMIT = 2 / 3 * _AIRY_SERIES_LIMIT**1.5


def in_f64(function: Callable[[Term], Term]) -> Callable[[Node], Node]:
    """`function` as a builder that computes in f64 and rounds once to the dtype of its operand."""

    @wraps(function)
    def build(x: Node) -> Node:
        return function(Term(x).cast(f64)).cast(x.dtype).node

    return build


def where(condition: Term, a: Operand, b: Operand) -> Term:
    """condition ? a : b."""
    return t.as_term(t.where(condition, a, b))


def at_least(x: Term, low: float) -> Term:
    """max(x, low); NaN stays."""
    return where(x < low, low, x)


def at_most(x: Term, high: float) -> Term:
    """min(x, high); NaN stays."""
    return where(x > high, high, x)


def chebyshev(x: Term, coefficients: Sequence[float]) -> Term:
    """c0 / 2 + c1 T1(x) + c2 T2(x) + ..., by Clenshaw's recurrence."""
    previous, value = x * 0.0, x * 0.0 + coefficients[-1]
    for c in coefficients[-2:0:-1]:
        previous, value = value, x * 2.0 * value - previous + c
    return x * value - previous + coefficients[0] / 2


def _even_series(x: Term, limit: float, coefficients: Sequence[float]) -> Term:
    """The Chebyshev series in x^2 for 0 <= x <= `limit`; its value at `limit` for larger x."""
    return chebyshev(at_most(x * x * (2 / limit**2) - 1, 1.0), coefficients)


def _hankel(order: int, x: Term, kind: int) -> Term:
    """J (kind 0) or Y (kind 1) for x >= 8, by Hankel's expansions."""
    x = at_least(x, _SERIES_LIMIT)
    z = _SERIES_LIMIT / x
    p, q = (chebyshev(z * z * 2 - 1, series) for series in _FIRST_KIND[order][1:])
    q = q / x
    sine, cosine = x.map(Sin()), x.map(Cos())
    # sqrt(2) times the sine and cosine of x - pi/4 - order pi/2
    sine_term, cosine_term = sine - cosine, sine + cosine
    if order:
        sine_term, cosine_term = -cosine_term, sine_term
    value = p * sine_term + q * cosine_term if kind else p * cosine_term - q * sine_term
    return value / (x * math.pi).map(Sqrt())


def _first_kind(order: int, x: Term) -> Term:
    """J of `order`."""
    a = x.map(Abs())
    small_value = _even_series(a, _SERIES_LIMIT, _FIRST_KIND[order][0])
    value = where(a <= _SERIES_LIMIT, small_value * a if order else small_value, _hankel(order, a, 0))
    return where(x < 0.0, -value, value) if order else value


def _second_kind(order: int, x: Term) -> Term:
    """Y of `order`; -inf at 0, NaN below."""
    small_value = _even_series(x, _SERIES_LIMIT, _SECOND_KIND[order])
    first = _even_series(x, _SERIES_LIMIT, _FIRST_KIND[order][0])
    log = x.map(Log()) * (2 / math.pi)
    small_value = small_value / x + log * first * x if order else small_value + log * first
    value = where(x <= _SERIES_LIMIT, small_value, _hankel(order, x, 1))
    return where(x.equals(0.0), -math.inf, where(x < 0.0, math.nan, value))


def _modified(order: int, scaled: bool, x: Term) -> Term:
    """K of `order`, or exp(x) K if `scaled`; inf at 0, NaN below."""
    growing, series, asymptotic = _MODIFIED[order]
    small_value = _even_series(x, _K_SERIES_LIMIT, series)
    log, first = x.map(Log()), _even_series(x, _K_SERIES_LIMIT, growing)
    small_value = small_value / x + log * first * x if order else small_value - log * first
    large_x = at_least(x, _K_SERIES_LIMIT)
    value = chebyshev(4.0 / large_x - 1, asymptotic) / large_x.map(Sqrt())
    small_value, value = (small_value * x.map(Exp()), value) if scaled else (small_value, value * (-large_x).map(Exp()))
    value = where(x <= _K_SERIES_LIMIT, small_value, value)
    return where(x.equals(0.0), math.inf, where(x < 0.0, math.nan, value))


bessel_j0, bessel_j1 = (in_f64(partial(_first_kind, n)) for n in (0, 1))
bessel_y0, bessel_y1 = (in_f64(partial(_second_kind, n)) for n in (0, 1))
bessel_k0, bessel_k1 = (in_f64(partial(_modified, n, False)) for n in (0, 1))
bessel_k0e, bessel_k1e = (in_f64(partial(_modified, n, True)) for n in (0, 1))


@in_f64
def spherical_bessel_j0(x: Term) -> Term:
    """sin(x) / x; 0 at infinity."""
    at_zero = x.equals(0.0)
    value = where(at_zero, 1.0, x.map(Sin()) / where(at_zero, 1.0, x))
    return where(x.map(Abs()).equals(math.inf), 0.0, value)


@in_f64
def airy_ai(x: Term) -> Term:
    """Ai(x); NaN at infinity, as in PyTorch."""
    size = at_least(x.map(Abs()), _AIRY_SERIES_LIMIT)
    root = size.map(Sqrt())
    phase = size * root * (2 / 3)
    scale = (root * math.pi).map(Sqrt())
    inverse = _AIRY_PHASE_LIMIT / phase
    positive_value = (-phase).map(Exp()) * chebyshev(inverse * 2 - 1, _AIRY_RIGHT) / (scale * 2)
    z = inverse * inverse * 2 - 1
    p, q = chebyshev(z, _AIRY_P), chebyshev(z, _AIRY_Q) / phase
    angle = phase + math.pi / 4
    negative_value = (p * angle.map(Sin()) - q * angle.map(Cos())) / scale
    series_value = chebyshev(
        at_most(at_least(x, -_AIRY_SERIES_LIMIT), _AIRY_SERIES_LIMIT) * (1 / _AIRY_SERIES_LIMIT), _AIRY
    )
    value = where(x > _AIRY_SERIES_LIMIT, positive_value, where(x < -_AIRY_SERIES_LIMIT, negative_value, series_value))
    return where(x.map(IsNan()) | size.equals(math.inf), math.nan, value)
