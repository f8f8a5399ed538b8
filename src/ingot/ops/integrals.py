"""Builders of integrals of elementary functions, in f64: Dawson, exponential and Fresnel integrals, the dilogarithm.

They use Chebyshev series, whose coefficients were computed with 40 digits, after splitting off growing and oscillating
factors (DLMF 6.6, 7.4, 7.12, 25.12). Dawson's integral uses Rybicki's sum ("Numerical Recipes", section 6.10).
"""

from __future__ import annotations

import math

from ingot.ops.bessel import at_least, at_most, chebyshev, in_f64, where
from ingot.ops.core.elementwise import Abs, Floor, RoundEven
from ingot.ops.core.functions import Cos, Exp, Log, Log1p, Sin
from ingot.ops.nn.terms import Term

# (Ei(x) - gamma - log x) / x, x from -2 to 6
_EI_NEAR = (
    8.426386871784805, 5.45798664471845, 2.7029483067053945, 1.073713016042085, 0.3557719485158979,
    0.10111032739291143, 0.025157789934478696, 0.005566897144369677, 0.0011091412949369866,
    0.00020097163838236158, 3.339181175971254e-05, 5.122836991219502e-06, 7.299748694009826e-07,
    9.71046092030988e-08, 1.211236857543149e-08, 1.4222151498533012e-09, 1.5774122119886476e-10,
    1.657691823632541e-11, 1.6551575711021715e-12, 1.5741037628515433e-13, 1.429114046184317e-14,
    1.2411776013433826e-15,
)  # fmt: skip
# x exp(-x) Ei(x) in 1 / x, for 6 <= x <= 14 and for x >= 14
_EI_MIDDLE = (
    2.3514605326381095, 0.0978044812311918, 0.00640321134684211, -0.000832166201060005, -0.00025260555146155284,
    2.543004558306094e-05, 6.837628835007845e-06, -1.637448680718268e-06, -7.385386634892699e-09,
    6.201927356112897e-08, -1.2088845608736278e-08, 2.649444089061592e-10, 4.0804247488987846e-10,
    -1.1221835531202972e-10, 1.315871682598255e-11, 9.065366849781089e-13, -7.841633241311534e-13,
    1.9012242061977802e-13, -2.4481343288256485e-14, -3.465368024633261e-16, 1.1100663184713337e-15,
    -3.3419093746735116e-16, 6.07144206513148e-17,
)  # fmt: skip
_EI_FAR = (
    2.0809934222241546, 0.04228808750721576, 0.0019291469100007402, 0.0001545833205097377,
    1.9563687660512384e-05, 3.156235047845999e-06, 3.937668027723561e-07, -5.233549851732723e-08,
    -5.579152816884965e-08, -1.6030480457062048e-08, 4.051124870407626e-10, 1.883573932344461e-09,
    4.252827909388192e-10, -1.431954017752333e-10, -8.170356872492576e-11, 7.53167540781552e-12,
    1.262811270984527e-11, 1.0917239873678822e-14, -1.9568967636906696e-12, -7.402777031066189e-14,
    3.2303701017774965e-13, 8.991894015141653e-15, -5.693681611724884e-14, 1.5291992878742179e-15,
    1.0385330315661642e-14, -1.2832903926060213e-15, -1.8569458894578556e-15, 5.002443560951595e-16,
    2.9785456430909394e-16, -1.52521381502718e-16,
)  # fmt: skip
# C(x) / x and S(x) / x^3 in x^4, x up to 2
_FRESNEL_C = (
    0.7948143771519961, -0.3100070983680217, 0.21349075614188737, -0.06678900553022198, 0.011085973995082385,
    -0.0011365259733006202, 7.927825032635591e-05, -4.013934222204706e-06, 1.544413153283575e-07,
    -4.6730963378884215e-09, 1.1418677215891532e-10, -2.301397740065535e-12, 3.8926496918449476e-14,
    -5.605750788138861e-16,
)  # fmt: skip
_FRESNEL_S = (
    0.3983734772838045, -0.22356648669212584, 0.08202822552969624, -0.016602561737554058, 0.0020382145350386067,
    -0.00016643843000521268, 9.674781743977045e-06, -4.2065853292879686e-07, 1.4200048580250818e-08,
    -3.8304499680234226e-10, 8.448489681753256e-12, -1.5523581348897443e-13, 2.4133399377221522e-15,
    -3.216107060101517e-17,
)  # fmt: skip
# pi x f(x) and pi^2 x^3 g(x) in 1 / x^4, for x >= 2
_FRESNEL_F = (
    1.983253479361644, -0.008052203424540985, 0.00029454464004463875, -2.3184205711282275e-05,
    2.7816279679823775e-06, -4.380481148872489e-07, 8.361281637108393e-08, -1.8440948293587535e-08,
    4.555365698926041e-09, -1.2335018608278001e-09, 3.604690893785707e-10, -1.1236671586647923e-10,
    3.7028666625184366e-11, -1.2807983295141648e-11, 4.6235762678674735e-12, -1.7337729837334538e-12,
    6.727135138591914e-13, -2.691950871701093e-13, 1.1078763851148124e-13, -4.6780175975540305e-14,
    2.0224469698184788e-14, -8.936143499816187e-15, 4.028923718028703e-15, -1.850896040314612e-15,
    8.653361638543367e-16, -4.1125476559925356e-16, 1.984829391034456e-16, -9.719125407311961e-17,
    4.8246486352886104e-17,
)  # fmt: skip
_FRESNEL_G = (
    1.9230668404350115, -0.036030028653009645, 0.002169175989382814, -0.00022669950819482923,
    3.297074653210468e-05, -5.994014740738009e-06, 1.2819008953592865e-06, -3.105139099909486e-07,
    8.305725385638261e-08, -2.4097249079203716e-08, 7.484025285660633e-09, -2.46343859660216e-09,
    8.527162860057405e-10, -3.0848123057606947e-10, 1.1604518933372687e-10, -4.520605189444535e-11,
    1.8173148740166264e-11, -7.517158820283856e-12, 3.1913798601385185e-12, -1.3876045530340895e-12,
    6.167358909259154e-13, -2.7974624414230893e-13, 1.293095898735698e-13, -6.083308136235504e-14,
    2.9093314820741894e-14, -1.4130071278802666e-14, 6.962917319067048e-15, -3.4783271009709414e-15,
    1.760159607828738e-15, -9.016452291866738e-16, 4.672472657355135e-16, -2.4481249714768587e-16,
    1.2961782107064325e-16, -6.931493519915911e-17,
)  # fmt: skip
# -Li2(-w) / w, w between -1/2 and 1/2
_SPENCE = (
    2.0298832128193074, -0.13148012838765802, 0.015313452518102082, -0.002272188943655959,
    0.00038516199300815945, -7.103404374209115e-05, 1.3885622487404779e-05, -2.8323954583854513e-06,
    5.968314737835964e-07, -1.2902312437546724e-07, 2.8475309127972237e-08, -6.392641519505728e-09,
    1.4558235675968631e-09, -3.356030027905024e-10, 7.818019409066589e-11, -1.8379324194103908e-11,
    4.355524622917214e-12, -1.0395111785603755e-12, 2.496666278162975e-13, -6.030470288343577e-14,
    1.4640624936086265e-14, -3.570903196070032e-15, 8.746346791364233e-16, -2.1505456792131715e-16,
    5.3064798693556575e-17,
)  # fmt: skip
_EULER_GAMMA = 0.5772156649015329
_EI_NEAR_LIMIT, _EI_MIDDLE_LIMIT = 6.0, 14.0  # the limits of its series
_FRESNEL_LIMIT = 2.0
_RYBICKI_STEP, _RYBICKI_TERMS = 0.25, 13  # the error is exp(-(pi / 2 / 0.25)^2) = 7e-18
_DAWSON_SERIES_LIMIT = 0.2  # the power series is used up to here


@in_f64
def dawson(x: Term) -> Term:
    """exp(-x^2) times the integral of exp(t^2) from 0 to x."""
    a = x.map(Abs())
    square = at_most(a, _DAWSON_SERIES_LIMIT) * at_most(a, _DAWSON_SERIES_LIMIT)
    series = square * 0.0 + 1.0
    for k in range(9, 0, -1):
        series = 1.0 - series * square * (2 / (2 * k + 1))
    size = at_most(at_least(a, _DAWSON_SERIES_LIMIT), 1e9)
    # the sum over odd n of exp(-(remainder - n h)^2) / (n + even), where even * h is the even multiple nearest to x
    even = (size * (0.5 / _RYBICKI_STEP)).map(RoundEven()) * 2.0
    remainder = size - even * _RYBICKI_STEP
    growth = (remainder * (2 * _RYBICKI_STEP)).map(Exp())
    power, total = growth, remainder * 0.0
    for i in range(_RYBICKI_TERMS):
        n = 2.0 * i + 1
        total = total + (power / (even + n) + 1.0 / ((even - n) * power)) * math.exp(-((n * _RYBICKI_STEP) ** 2))
        power = power * growth * growth
    large_value = total * (-(remainder * remainder)).map(Exp()) / (size * math.sqrt(math.pi))
    return where(a <= _DAWSON_SERIES_LIMIT, x * series, where(a > 1e9, 0.5 / x, x * large_value))


@in_f64
def exponential_integral(x: Term) -> Term:
    """Ei(x), the integral of exp(t) / t up to x; -inf at 0, NaN below."""
    small_value = at_most(x, _EI_NEAR_LIMIT)
    small_value = chebyshev((small_value - 2.0) / 4.0, _EI_NEAR) * small_value + small_value.map(Log()) + _EULER_GAMMA
    large_x = at_least(x, _EI_NEAR_LIMIT)
    inverse, low, high = 1.0 / large_x, 1 / _EI_MIDDLE_LIMIT, 1 / _EI_NEAR_LIMIT
    middle_value = chebyshev((at_least(inverse, low) - (low + high) / 2) * (2 / (high - low)), _EI_MIDDLE)
    large_value = chebyshev(at_most(inverse, low) * (2 / low) - 1.0, _EI_FAR)
    half = (large_x * 0.5).map(Exp())  # multiplied twice, because exp(x) overflows before Ei(x)
    value = where(
        x <= _EI_NEAR_LIMIT,
        small_value,
        half * (half * inverse * where(x <= _EI_MIDDLE_LIMIT, middle_value, large_value)),
    )
    return where(x.equals(math.inf), math.inf, where(x < 0.0, math.nan, value))


def _fresnel(x: Term, sine: bool) -> Term:
    a = x.map(Abs())
    small_x = at_most(a, _FRESNEL_LIMIT)
    square = small_x * small_x
    inner = small_x * chebyshev(square * square / 8.0 - 1.0, _FRESNEL_S if sine else _FRESNEL_C)
    size = at_most(at_least(a, _FRESNEL_LIMIT), 1e18)
    inverse = 1.0 / (size * size)
    argument = inverse * inverse * 32.0 - 1.0
    f = chebyshev(argument, _FRESNEL_F) / (size * math.pi)
    g = chebyshev(argument, _FRESNEL_G) * inverse / (size * math.pi**2)
    rotations = size * size * 0.25  # the angle pi x^2 / 2 in units of 2 pi
    angle = (rotations - rotations.map(Floor())) * (2 * math.pi)
    s, c = angle.map(Sin()), angle.map(Cos())
    outer = 0.5 - f * c - g * s if sine else 0.5 + f * s - g * c
    value = where(a <= _FRESNEL_LIMIT, inner * square if sine else inner, outer)
    return where(x < 0.0, -value, value)


@in_f64
def fresnel_sin(x: Term) -> Term:
    """The integral of sin(pi t^2 / 2) from 0 to x."""
    return _fresnel(x, sine=True)


@in_f64
def fresnel_cos(x: Term) -> Term:
    """The integral of cos(pi t^2 / 2) from 0 to x."""
    return _fresnel(x, sine=False)


@in_f64
def spence(x: Term) -> Term:
    """Li2(1 - x), minus the integral of log(t) / (t - 1) from 1 to x; NaN below 0 and at infinity."""
    is_inverted = x > 1.5
    argument = where(is_inverted, 1.0 / at_least(x, 1.5), at_least(x, 0.0))
    is_reflected = argument < 0.5
    w = where(is_reflected, -argument, argument - 1.0)
    value = -w * chebyshev(w * 2.0, _SPENCE)
    log = at_least(argument, 1e-300).map(Log())
    value = where(
        is_reflected, math.pi**2 / 6 - log * (-where(is_reflected, argument, 0.0)).map(Log1p()) - value, value
    )
    value = where(is_inverted, -0.5 * log * log - value, value)
    return where((x < 0.0) | x.equals(math.inf), math.nan, value)
