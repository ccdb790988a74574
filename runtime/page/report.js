/* The page of the command report: curves of several runs over one another, heat maps of experts, what happened. */

/* What curves are called, how they are put together, and what they say. */
const CHARTS = [
	["loss", ["loss"], "cross-entropy of the step's labels"],
	["evaluation loss", ["eval_loss"], "on held-out data"],
	["gradient norm", ["grad_norm"], "before it is clipped"],
	["learning rate", ["lr"], ""],
	["tokens a second", ["tokens_per_s"], "of all ranks"],
	["use of the peak (MFU)", ["mfu"], "share of the data sheet's peak, by the plan's FLOPs a token"],
	["TFLOP/s of a device", ["tflops"], ""],
	["seconds waited for data", ["data_wait"], "of each step"],
	["slowest rank over the mean", ["slowest"], "seconds at work of the rank that others wait for, over the mean of all"],
	["what the step minimised", ["total"], "loss and weighted auxiliary losses"],
	["balance score beside the load", ["load_balance", "moe/max_load", "moe/max_rank"],
		"the score is 1 where routers spread tokens evenly over the batch; max_load is the busiest expert's load over the mean, max_rank the busiest rank's: means over layers"],
	["experts without a token", ["moe/dead"], "sum over layers"],
	["entropy of the load", ["moe/entropy"], "1 where all experts have as much; mean over layers"],
	["routes cut", ["moe/cut"], "share that a rank had no rows for, mean over layers"],
	["router z loss", ["z"], ""],
	["head z loss", ["head_z"], "mean squared log-sum-exp"],
	["SpikeScore", ["spikes"], "share of the last 10,000 steps that stood out"],
];
const EVENT_COLOR = { "skipped": "c1", "not finite": "c5", "restart": "c0", "rollback": "c3", "slow": "c4" };
const DASH = [[], [7, 4], [2, 3]];

/* Curves as arrays of steps and numbers; of layers' numbers also their mean or sum over the layers. */
function read_report(d, i) {
	const run = { ...d, i, on: true, curves: new Map(), layers: new Map(), loads: new Map() };
	const curve = (s) => ({ at: s.x, step: s.x.map((b) => d.first + b * d.width), y: s.y, lo: s.l || s.y, hi: s.h || s.y, last: s.last });
	for (const [name, s] of Object.entries(d.series)) {
		const m = /^moe\/(\d+)\/(\w+)$/.exec(name);
		if (name === "step" || /^moe\/\d+\/layer$/.test(name) || /^(tokens|resumed|skipped|rollbacks)$/.test(name))
			continue;
		if (m)
			run.layers.set(m[2], (run.layers.get(m[2]) || new Map()).set(Number(m[1]), curve(s)));
		else
			run.curves.set(name, curve(s));
	}
	for (const [key, layers] of run.layers) {
		const bins = new Map(), sum = key === "dead";
		for (const c of layers.values())
			c.at.forEach((b, k) => {
				const x = bins.get(b) || { n: 0, y: 0, lo: Infinity, hi: -Infinity };
				bins.set(b, { n: x.n + 1, y: x.y + c.y[k], lo: Math.min(x.lo, c.lo[k]), hi: Math.max(x.hi, c.hi[k]) });
			});
		const at = [...bins.keys()].sort((a, b) => a - b), all = at.map((b) => bins.get(b));
		const y = all.map((x) => sum ? x.y : x.y / x.n), last = [...layers.values()].reduce((a, c) => a + c.last, 0);
		run.curves.set(`moe/${key}`, { at, step: at.map((b) => d.first + b * d.width), y, lo: sum ? y : all.map((x) => x.lo),
			hi: sum ? y : all.map((x) => x.hi), last: sum ? last : last / layers.size });
	}
	run.tokens = d.series.tokens ? curve(d.series.tokens) : null;
	run.short = d.name.replace(/\/metrics\.jsonl$/, "").replace(/\.jsonl$/, "").replace(/^.*\/(?=[^/])/, "");
	return run;
}

function number(x) {
	if (x === undefined || x === null || Number.isNaN(x))
		return "";
	if (x !== 0 && Math.abs(x) < 1e-3)
		return Number(x.toPrecision(4)).toExponential();
	return Math.abs(x) >= 1e5 ? commas(x) : String(Number(x.toPrecision(6)));
}

/* A moving mean that begins with the first number; of few numbers each stands for itself. */
function smooth(y, by) {
	let mean = 0, weight = 0;
	return by > 0 && y.length > 100 ? y.map((x) => {
		mean = by * mean + (1 - by) * x;
		weight = by * weight + (1 - by);
		return mean / weight;
	}) : y;
}

function start() {
	const runs = JSON.parse(document.getElementById("data").textContent).map(read_report);
	for (const r of runs) /* files of one name are told apart by their folders */
		if (runs.some((x) => x !== r && x.short === r.short))
			r.short = r.name;
	const set = { smooth: 0.6, log_y: new Set(), log_x: false, axis: "steps", band: true };
	const page = { runs, charts: new Map(), set };
	const main = el("main", { id: "main" }), shared = { x0: 0, x1: 1 };
	const shown = () => runs.filter((r) => r.on);

	/* ---- the axis that all charts have ---- */

	/* tokens up to a step, between those of two bins; batches may grow */
	function tokens_at(run, step) {
		const c = run.tokens;
		let i = 1;
		if (!c || c.step.length < 2)
			return c ? c.last : 0;
		while (i + 1 < c.step.length && c.step[i] < step)
			i++;
		return c.y[i - 1] + (c.y[i] - c.y[i - 1]) * (step - c.step[i - 1]) / (c.step[i] - c.step[i - 1]);
	}
	const place_of = (run, step) => set.axis === "tokens" ? tokens_at(run, step) : step;
	function span() {
		const ends = runs.flatMap((r) => [place_of(r, r.first), place_of(r, r.last)]);
		const lo = Math.min(...ends), hi = Math.max(...ends, lo + 1);
		return set.log_x ? [Math.log(Math.max(1, lo)), Math.log(Math.max(2, hi))] : [lo, hi];
	}
	/* 0 .. 1 of all that there is */
	function unit(run, step, s) {
		const x = place_of(run, step);
		return ((set.log_x ? Math.log(Math.max(1, x)) : x) - s[0]) / (s[1] - s[0]);
	}
	function every_chart(f) {
		for (const v of page.charts.values())
			f(v);
	}
	function moved(view) {
		Object.assign(shared, { x0: view.x0, x1: view.x1 });
		every_chart((v) => {
			if (v !== view && (v.x0 !== view.x0 || v.x1 !== view.x1)) {
				v.x0 = view.x0;
				v.x1 = view.x1;
				v.redraw();
			}
		});
	}
	function x_axis(c, v, left, bottom) {
		const s = span(), from = s[0] + v.x0 * (s[1] - s[0]), to = s[0] + v.x1 * (s[1] - s[0]);
		const at = (t) => left + (t - from) / (to - from) * (v.width - left - 8);
		c.fillStyle = color("dim");
		c.textAlign = "center";
		const list = set.log_x ? Array.from({ length: 40 }, (_, i) => 10 ** Math.floor(i / 2) * (i % 2 ? 3 : 1)).filter((t) => Math.log(t) >= from && Math.log(t) <= to)
			: ticks(from, to, Math.max(2, (v.width - left) / 90));
		for (const t of list)
			c.fillText(short(t, 4).replace(" ", ""), Math.min(v.width - 16, at(set.log_x ? Math.log(t) : t)), v.height - bottom + 11);
	}

	/* ---- curves ---- */

	function chart(title, keys, about) {
		const left = 58, bottom = 20, top = 8, height = 240;
		const lines = () => shown().flatMap((run) => keys.map((key, k) => ({ run, key, k, c: run.curves.get(key) })).filter((l) => l.c));
		let scale = null;

		function seen(l, s, v) { /* the bins between which the view lies */
			let a = 0, b = l.c.step.length - 1;
			while (a < b && unit(l.run, l.c.step[a + 1], s) < v.x0)
				a++;
			while (b > a && unit(l.run, l.c.step[b - 1], s) > v.x1)
				b--;
			return [a, b];
		}
		function make_scale(v) {
			const s = span();
			let lo = Infinity, hi = -Infinity, least = Infinity;
			for (const l of lines()) {
				const [a, b] = seen(l, s, v), y = smooth(l.c.y, set.smooth);
				for (let i = a; i <= b; i++) {
					lo = Math.min(lo, set.band ? l.c.lo[i] : y[i]);
					hi = Math.max(hi, set.band ? l.c.hi[i] : y[i]);
					least = l.c.lo[i] > 0 ? Math.min(least, l.c.lo[i]) : least;
				}
			}
			const log = set.log_y.has(title) && hi > 0;
			if (log)
				lo = lo > 0 ? lo : Math.min(least, hi);
			const [a, b] = log ? [Math.log(lo), Math.log(hi)] : [lo, hi];
			/* what does not change is a line in the middle */
			const room = (b - a > 1e-6 * Math.abs(b) ? b - a : Math.abs(b) || 1) * 0.05;
			return { s, log, lo: a - room, hi: b + room };
		}
		const x_of = (run, step, v) => left + (unit(run, step, scale.s) - v.x0) / (v.x1 - v.x0) * (v.width - left - 8);
		const y_of = (y) => top + (1 - ((scale.log ? Math.log(Math.max(y, 1e-300)) : y) - scale.lo) / (scale.hi - scale.lo)) * (height - top - bottom);

		function draw(c, v) {
			const all = lines();
			if (!all.length)
				return;
			scale = make_scale(v);
			c.strokeStyle = color("soft");
			c.fillStyle = color("dim");
			c.textAlign = "right";
			c.lineWidth = 1;
			for (const t of scale.log ? ticks(scale.lo / Math.LN10, scale.hi / Math.LN10, 5).map((e) => 10 ** e) : ticks(scale.lo, scale.hi, 6)) {
				c.fillText(number(Number(t.toPrecision(4))), left - 6, y_of(t));
				c.beginPath();
				c.moveTo(left, y_of(t));
				c.lineTo(v.width - 8, y_of(t));
				c.stroke();
			}
			x_axis(c, v, left, bottom);
			c.save();
			c.beginPath();
			c.rect(left, 0, v.width - left - 8, height - bottom);
			c.clip();
			if (title === "loss") /* what happened, at the foot */
				for (const run of shown())
					for (const [step, kind] of run.events) {
						c.fillStyle = color(EVENT_COLOR[kind]);
						const x = x_of(run, step, v);
						c.beginPath();
						c.moveTo(x - 4, height - bottom);
						c.lineTo(x + 4, height - bottom);
						c.lineTo(x, height - bottom - 8);
						c.fill();
					}
			for (const l of all) {
				const [a, b] = seen(l, scale.s, v), y = smooth(l.c.y, set.smooth);
				c.strokeStyle = c.fillStyle = series(l.run.i);
				if (set.band && (l.c.hi !== l.c.y || (set.smooth > 0 && l.c.y.length > 100))) {
					c.globalAlpha = 0.16;
					c.beginPath();
					for (let i = a; i <= b; i++)
						c.lineTo(x_of(l.run, l.c.step[i], v), y_of(l.c.hi[i]));
					for (let i = b; i >= a; i--)
						c.lineTo(x_of(l.run, l.c.step[i], v), y_of(l.c.lo[i]));
					if (l.c.hi === l.c.y)
						c.stroke();
					else
						c.fill();
					c.globalAlpha = 1;
				}
				c.lineWidth = 1.6;
				c.setLineDash(DASH[l.k % 3]);
				c.beginPath();
				for (let i = a; i <= b; i++)
					c.lineTo(x_of(l.run, l.c.step[i], v), y_of(y[i]));
				c.stroke();
				c.setLineDash([]);
				if (b - a < 40)
					for (let i = a; i <= b; i++)
						c.fillRect(x_of(l.run, l.c.step[i], v) - 1.5, y_of(y[i]) - 1.5, 3, 3);
			}
			if (v.item) {
				c.strokeStyle = color("dim");
				c.setLineDash([3, 3]);
				c.beginPath();
				c.moveTo(v.item.x, 0);
				c.lineTo(v.item.x, height - bottom);
				c.stroke();
				c.setLineDash([]);
			}
			c.restore();
		}
		/* Each run's bin that is nearest. */
		function at_x(x, v) {
			const all = lines(), said = [];
			let key = "";
			if (!scale || !all.length)
				return null;
			for (const l of all) {
				let best = 0, far = Infinity;
				for (let i = 0; i < l.c.step.length; i++) {
					const d = Math.abs(x_of(l.run, l.c.step[i], v) - x);
					if (d < far) {
						far = d;
						best = i;
					}
				}
				const many = l.run.width > 1, from = l.c.step[best];
				said.push(`${runs.length > 1 ? `${l.run.short}, ` : ""}${many ? `steps ${commas(from)} .. ${commas(from + l.run.width - 1)}` : `step ${commas(from)}`}: ${
					keys.length > 1 ? `${l.key.replace("moe/", "")} ` : ""}${number(l.c.y[best])}${
					l.c.lo[best] !== l.c.hi[best] ? ` (${number(l.c.lo[best])} .. ${number(l.c.hi[best])})` : ""}`);
				key += `${best},`;
			}
			const near = title === "loss" ? shown().flatMap((run) => run.events.filter(([step]) => Math.abs(x_of(run, step, v) - x) < 4)
				.map(([step, kind, text]) => `${kind}${runs.length > 1 ? `, ${run.short}` : ""}, step ${commas(step)}: ${text}`)) : [];
			return { key: key + near.length, x, text: [...said, ...near.slice(0, 6)].join("\n") };
		}
		let cursor = null;
		const view = figure({ label: `${title}: arrow keys read values, + and − zoom`, moves: "x", left, height, draw, changed: moved,
			hit: (x, y, v) => x < left || y > height - bottom ? null : at_x(x, v),
			key(event, v) {
				const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
				if (!by || event.shiftKey)
					return false;
				cursor = Math.min(v.width - 9, Math.max(left, (cursor === null ? left : cursor) + by * 8));
				v.item = at_x(cursor, v);
				v.say(v.item ? v.item.text.replace(/\n/g, "; ") : "");
				v.redraw();
				return true;
			} });
		const list = table_view(title, [["run", ""], ...(keys.length > 1 ? [["of", ""]] : []), ["step", "n"], ["mean", "n"], ["least", "n"], ["greatest", "n"]],
			() => lines().flatMap((l) => l.c.step.map((step, i) => [l.run.short, ...(keys.length > 1 ? [l.key.replace("moe/", "")] : []), commas(step),
				number(l.c.y[i]), number(l.c.lo[i]), number(l.c.hi[i])])));
		view.update = () => { list.update(); view.redraw(); };
		view.values = lines;
		view.x_of = (run, step) => x_of(run, step, view);
		page.charts.set(title, view);
		return el("figure", null, el("h3", null, title), about ? el("p", { class: "dim" }, about) : "", view.canvas, view.status,
			title === "loss" ? legend(Object.entries(EVENT_COLOR).filter(([kind]) => runs.some((r) => r.counts[kind])).map(([kind, c]) => [`var(--${c})`, kind])) : "",
			keys.length > 1 ? el("ul", { class: "legend" }, keys.filter((k) => runs.some((r) => r.curves.has(k))).map((k, i) =>
				el("li", null, el("span", { class: "dash", style: `border-top-style:${["solid", "dashed", "dotted"][i % 3]}` }), k.replace("moe/", "")))) : "",
			el("div", { class: "bar" }, toggle("logarithmic", false, (on) => {
				set.log_y[on ? "add" : "delete"](title);
				view.redraw();
			}), view.controls), list);
	}

	/* ---- heat maps ---- */

	function heat_section(run, box) {
		const metrics = [...run.layers.keys()].filter((k) => k !== "layer");
		const loads = Object.entries(run.heats).map(([name, h]) => ({ name, m: /^moe\/(\d+)\/load$/.exec(name), h }));
		const experts = loads.filter((l) => l.m).map((l) => ({ layer: Number(l.m[1]), h: l.h })).sort((a, b) => a.layer - b.layer);
		let metric = metrics.includes("max_load") ? "max_load" : metrics[0], layer = experts.length ? experts[0].layer : -1;
		const digit = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
		const share = (ch) => { const i = digit.indexOf(ch); return i ? 2 ** ((i - 1) * 8 / 62 - 4) : 0; };
		const left = 72;

		const layers = () => [...(run.layers.get(metric) || new Map())].sort((a, b) => a[0] - b[0]);
		if (metrics.length) {
			const view = figure({ label: `Layers of ${run.short} over the steps`, height: () => 24 + layers().length * rh(),
				draw(c, v) {
					const all = layers(), most = Math.max(...all.map(([, x]) => Math.max(...x.y))), least = Math.min(...all.map(([, x]) => Math.min(...x.y)));
					const n = all[0][1].at[all[0][1].at.length - 1] + 1, w = (v.width - left) / n;
					all.forEach(([l, x], i) => {
						c.fillStyle = color("dim");
						c.textAlign = "left";
						if (rh() > 10 || i % 4 === 0)
							c.fillText(`layer ${l}`, 0, i * rh() + rh() / 2);
						c.fillStyle = series(metric === "entropy" ? 2 : 1);
						x.at.forEach((b, k) => {
							c.globalAlpha = 0.06 + 0.94 * (most > least ? (x.y[k] - least) / (most - least) : 0);
							column(c, left, w, b, i * rh(), rh() - 1);
						});
						c.globalAlpha = 1;
					});
					foot(c, v, run);
				},
				hit(x, y, v) {
					const all = layers(), i = Math.floor(y / rh());
					if (!all[i] || x < left)
						return null;
					const c = all[i][1], n = c.at[c.at.length - 1] + 1, want_bin = (x - left) / (v.width - left) * n;
					let k = 0;
					while (k + 1 < c.at.length && c.at[k + 1] <= want_bin)
						k++;
					return { key: `${i} ${k}`, layer: all[i][0], text: `layer ${all[i][0]}, step ${commas(c.step[k])}: ${metric} ${number(c.y[k])}${
						c.lo[k] !== c.hi[k] ? ` (${number(c.lo[k])} .. ${number(c.hi[k])})` : ""}` };
				},
				picked: (item) => item && choose(item.layer) });
			const rows = table_view(`${run.short}, layers`, [["layer", "n"], ["step", "n"], ["mean", "n"], ["least", "n"], ["greatest", "n"]],
				() => layers().flatMap(([l, c]) => c.step.map((s, k) => [l, commas(s), number(c.y[k]), number(c.lo[k]), number(c.hi[k])])));
			box.append(el("div", { class: "bar" }, choice("number of each layer", metrics.map((m) => [m, m]), metric, (m) => { metric = m; view.redraw(); rows.update(); })),
				el("figure", null, view.canvas, view.status, el("figcaption", null, "A row is a layer, a column some steps; the stronger its colour, the more. A click shows the layer's experts below.")), rows);
			page.layers = { view, set: (m) => { metric = m; view.redraw(); } };
		}
		function rh() {
			return Math.max(5, Math.min(18, 300 / Math.max(1, layers().length)));
		}
		const maps = el("div");
		box.append(maps);
		function choose(l) {
			layer = l;
			const found = experts.find((e) => e.layer === l);
			if (!found)
				return;
			maps.replaceChildren(el("div", { class: "bar" }, choice("experts of layer", experts.map((e) => [e.layer, e.layer]), layer, (x) => choose(Number(x)))),
				heat(found.h, `Load of the experts of layer ${l}`, "expert", (k) => `expert ${k} of layer ${l}`));
		}
		function heat(h, title, what, name) {
			const n = h.x[h.x.length - 1] + 1, row = Math.max(2, Math.min(14, 420 / h.rows));
			const cell = (i, k) => share(h.cells[i * h.rows + k]);
			const view = figure({ label: `${title}, over the steps`, height: () => 24 + h.rows * row,
				draw(c, v) {
					const w = (v.width - left) / n, less = color("c0"), more = color("c1"), back = color("soft");
					c.textAlign = "left";
					h.x.forEach((b, i) => {
						for (let k = 0; k < h.rows; k++) {
							const x = cell(i, k), d = x > 0 ? Math.max(-1, Math.min(1, Math.log2(x) / 2)) : -1;
							c.fillStyle = x > 0 ? back : color("text");
							c.globalAlpha = 1;
							column(c, left, w, b, k * row, row - (row > 5 ? 0.5 : 0));
							if (x > 0) {
								c.globalAlpha = Math.abs(d);
								c.fillStyle = d < 0 ? less : more;
								column(c, left, w, b, k * row, row - (row > 5 ? 0.5 : 0));
							}
						}
					});
					c.globalAlpha = 1;
					c.fillStyle = color("dim");
					for (const k of ticks(0, h.rows - 1, Math.max(2, h.rows * row / 24)))
						c.fillText(`${what} ${k}`.slice(0, 9), 0, k * row + row / 2 + (row < 8 ? 3 : 0));
					foot(c, v, run);
				},
				hit(x, y, v) {
					const k = Math.floor(y / row), b = Math.floor((x - left) / (v.width - left) * n);
					let i = 0;
					while (i + 1 < h.x.length && h.x[i + 1] <= b)
						i++;
					if (k < 0 || k >= h.rows || x < left)
						return null;
					const s = cell(i, k), from = run.first + h.x[i] * run.wide * run.width;
					return { key: `${i} ${k}`, text: `${name(k)}, from step ${commas(from)}: ${s > 0 ? `${s.toFixed(2)} of the mean` : "none"}` };
				} });
			page.heat = { view, h, cell, row, left };
			return el("div", null, el("figure", null, view.canvas, view.status,
				legend([["var(--c0)", "a quarter of the mean or less"], ["var(--soft)", "as the mean"], ["var(--c1)", "four times the mean or more"], ["var(--text)", "none"]]),
				el("figcaption", null, title)),
			table_view(title, [["from step", "n"], [what, "n"], ["of the mean", "n"]], () => h.x.flatMap((b, i) =>
				Array.from({ length: h.rows }, (_, k) => [commas(run.first + b * run.wide * run.width), k, cell(i, k).toFixed(2)]))));
		}
		if (experts.length)
			choose(layer);
		for (const o of loads.filter((l) => !l.m))
			box.append(o.name === "ranks"
				? heat(o.h, "Seconds at work of each rank, over their mean: the others wait for the longest", "rank", (k) => `rank ${k}`)
				: heat(o.h, o.name, "row", (k) => `${o.name}, row ${k}`));
		if (!metrics.length && !loads.length)
			box.append(el("p", { class: "dim" }, "This run has no layers of experts."));
	}
	/* whole pixels, so that columns neither overlap nor have gaps */
	function column(c, from, w, b, y, h) {
		const x = Math.floor(from + b * w);
		c.fillRect(x, y, Math.max(1, Math.floor(from + (b + 1) * w) - x), h);
	}
	function foot(c, v, run) {
		c.fillStyle = color("dim");
		for (const f of [0, 0.25, 0.5, 0.75, 1]) {
			c.textAlign = f === 1 ? "right" : "left";
			c.fillText(commas(run.first + f * (run.last - run.first)), 72 + f * (v.width - 72), v.height - 9);
		}
		c.textAlign = "left";
	}

	/* ---- the page ---- */

	const value = (r, key) => r.curves.has(key) ? number(r.curves.get(key).last) : "";
	const mean = (r, key) => {
		const c = r.curves.get(key);
		return c ? number(c.y.reduce((a, x) => a + x, 0) / c.y.length) : "";
	};
	const least = (r, key) => r.curves.has(key) ? number(Math.min(...r.curves.get(key).lo)) : "";
	const summary = table("What became of each run", [["run", ""], ["lines", "n"], ["last step", "n"], ["tokens", "n"], ["last loss", "n"], ["least evaluation loss", "n"],
		["mean tokens/s", "n"], ["mean MFU", "n"], ["skipped", "n"], ["not finite", "n"], ["restarts", "n"], ["rollbacks", "n"], ["slow steps", "n"],
		["dead experts at the end", "n"]],
	runs.map((r) => [`${r.short}${r.going ? " (a line is being written)" : ""}`, commas(r.lines), commas(r.last), r.tokens ? commas(r.tokens.last) : "", value(r, "loss"),
		least(r, "eval_loss"), mean(r, "tokens_per_s"), mean(r, "mfu"), r.counts.skipped, r.counts["not finite"], r.counts.restart, r.counts.rollback,
		r.counts.slow, value(r, "moe/dead")]));
	const used = new Set(CHARTS.flatMap(([, keys]) => keys));
	const others = [...new Set(runs.flatMap((r) => [...r.curves.keys()]))].filter((k) => !used.has(k) && k !== "moe/layer").sort();
	const evals = others.filter((k) => k.startsWith("eval")), more = others.filter((k) => !k.startsWith("eval"));
	const with_data = CHARTS.filter(([, keys]) => runs.some((r) => keys.some((k) => r.curves.has(k))));
	const loads = el("div"), events = el("div");
	const pick = choice("run", runs.map((r, i) => [i, r.short]), 0, (i) => { loads.replaceChildren(); heat_section(runs[i], loads); });

	function show_events() {
		const rows = shown().flatMap((r) => r.events.map(([step, kind, text]) => [step, commas(step), r.short, kind, text])).sort((a, b) => a[0] - b[0]);
		events.replaceChildren(rows.length ? table("Skipped steps, restarts, rollbacks, slow steps", [["step", "n"], ["run", ""], ["what", ""], ["", ""]], rows.slice(0, MOST_ROWS).map((r) => r.slice(1)))
			: el("p", { class: "dim" }, "No step was skipped, no run restarted, no step was slow."));
	}
	function update() {
		every_chart((v) => v.update());
		show_events();
	}
	const reset = () => every_chart((v) => v.show(0, 1));
	const smoothing = el("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(set.smooth), "aria-label": "Smoothing",
		input: () => { set.smooth = Number(smoothing.value); every_chart((v) => v.redraw()); } });
	const sections = [["runs", "Runs"], ["curves", "Curves"], ...(evals.length ? [["evaluations", "Evaluations"]] : []), ["experts", "Experts and ranks"], ["events", "What happened"],
		...(more.length ? [["others", "Other numbers"]] : [])];
	const nav = el("nav", { "aria-label": "Sections" }, sections.map(([id, name]) => el("a", { href: `#${id}` }, name)));
	const section = (id, ...children) => el("section", { id, "aria-labelledby": `${id}-title` },
		el("h2", { id: `${id}-title` }, sections.find((s) => s[0] === id)[1]), ...children);
	const plain = (k) => chart(k, [k], "");

	document.title = `${runs.map((r) => r.short).join(", ")}: training report`;
	main.append(
		section("runs", summary, el("p", { class: "dim" }, runs.some((r) => r.width > 1)
			? `Curves have at most 1,024 points a run: each is the mean of ${runs.map((r) => `${commas(r.width)}${runs.length > 1 ? ` (${r.short})` : ""}`).join(", ")} steps, and the band around it their least and greatest.` : "Each step is a point.")),
		section("curves",
			el("div", { class: "bar sticky" },
				el("span", { class: "bar runs", role: "group", "aria-label": "Runs that are shown" }, runs.map((r) => {
					const t = toggle(r.short, true, (on) => { r.on = on; update(); });
					t.prepend(el("span", { class: "swatch", style: `background:var(--c${r.i % 10})` }));
					return t;
				})),
				el("label", null, "smoothing", smoothing),
				choice("over", [["steps", "steps"], ["tokens", "tokens"]], "steps", (x) => { set.axis = x; reset(); }),
				toggle("logarithmic axis", false, (on) => { set.log_x = on; reset(); }),
				toggle("least and greatest", true, (on) => { set.band = on; every_chart((v) => v.redraw()); })),
			el("div", { class: "charts" }, with_data.map((c) => chart(...c)))),
		...(evals.length ? [section("evaluations", el("div", { class: "charts" }, evals.map(plain)))] : []),
		section("experts", el("div", { class: "bar" }, runs.length > 1 ? pick : ""), loads),
		section("events", events),
		...(more.length ? [section("others", el("div", { class: "charts" }, more.map(plain)))] : []));
	heat_section(runs[0], loads);
	show_events();
	document.body.prepend(el("a", { class: "skip", href: "#main" }, "Skip to the report"),
		el("header", { class: "top" }, el("h1", null, runs.length > 1 ? `${runs.length} runs` : runs[0].short), nav, theme_button()), main);
	follow_sections(nav, main);
	window.olmogen = page;
}
