/*
 * A token's way to its experts and back, on the plan's own sizes. Which experts a token takes is drawn, for no plan knows
 * that; where its rows then lie is worked out as the kernels do it (kernels: ep_map).
 */

/* Random numbers that are the same every time. */
function draws(seed) {
	let a = seed >>> 0;
	return () => {
		a = (a + 0x6d2b79f5) >>> 0;
		let t = Math.imul(a ^ (a >>> 15), 1 | a);
		t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
		return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
	};
}

/* Routes of one rank's tokens in full, counts of all ranks, and where every block of rows begins. */
function make_routes(p, kind, source, skew) {
	const w = group_of(p, "expert").size, E = kind.experts, K = kind.top_k, T = p.T, here = E / w, c = kind.capacity;
	const random = draws(7 + source), all = new Float64Array(E), chosen = new Uint16Array(T * K);
	const normal = (r) => Math.sqrt(-2 * Math.log(r() + 1e-12)) * Math.cos(2 * Math.PI * r());
	const liked = draws(99);
	let sum = 0;
	for (let e = 0; e < E; e++)
		all[e] = sum += Math.exp(skew * normal(liked));
	const counts = Array.from({ length: w }, () => new Float64Array(E));
	for (let t = 0; t < T; t++)
		for (let k = 0; k < K; k++) {
			let e = 0, again = true;
			for (let tries = 0; again; tries++) {
				const x = random() * sum;
				let lo = 0, hi = E - 1;
				while (lo < hi) {
					const mid = (lo + hi) >> 1;
					if (all[mid] < x)
						lo = mid + 1;
					else
						hi = mid;
				}
				e = tries < 64 ? lo : (e + 1) % E;
				again = false;
				for (let j = 0; j < k; j++)
					again = again || chosen[t * K + j] === e;
			}
			chosen[t * K + k] = e;
			counts[source][e]++;
		}
	for (let s = 0; s < w; s++) { /* others': the same likings, other tokens */
		const r = draws(1000 + s);
		let left = T * K;
		for (let e = 0; e < E && s !== source; e++) {
			const rest = E - 1 - e, mean = counts[source][e];
			counts[s][e] = Math.min(T, left, Math.max(left - rest * T, Math.round(mean + normal(r) * Math.sqrt(mean))));
			left -= counts[s][e];
		}
	}
	const first = counts.map(() => new Float64Array(E)), keep = counts.map(() => new Float64Array(E)), begin = new Float64Array(E);
	const used = new Float64Array(w);
	for (let e = 0, row = 0; e < E; e++) {
		const owner = Math.floor(e / here);
		row = e % here ? row : 0;
		begin[e] = row;
		for (let s = 0; s < w; s++) {
			const kept = Math.min(counts[s][e], c - row);
			first[s][e] = row;
			keep[s][e] = kept;
			row += kept;
		}
		row = Math.ceil(row / p.rows_multiple) * p.rows_multiple;
		used[owner] = row;
	}
	return { w, E, K, T, here, c, source, chosen, counts, first, keep, begin, used };
}
/* Of a token: where each of its rows ends up, and why there. */
function token_routes(r, token) {
	const list = [];
	for (let k = 0; k < r.K; k++) {
		const e = r.chosen[token * r.K + k], owner = Math.floor(e / r.here);
		let earlier = 0;
		for (let i = 0; i < token * r.K + k; i++)
			earlier += r.chosen[i] === e;
		const row = earlier < r.keep[r.source][e] ? r.first[r.source][e] + earlier : -1;
		list.push({ k, e, owner, experts: r.begin[e], ranks: r.first[r.source][e] - r.begin[e], earlier, row });
	}
	return list;
}

function route(p, box) {
	const kinds = p.kinds.filter((k) => k.experts);
	if (!kinds.length) {
		box.append(el("p", { class: "dim" }, "No layer of this model has experts: nothing is routed."));
		return;
	}
	const row_bytes = p.row_bytes, w = group_of(p, "expert").size;
	let kind = kinds[0], source = Math.min(w - 1, 1), skew = 0.4, token = Math.min(p.T - 1, Math.floor(p.T * 0.4)), r, way;
	let step = 0, at = 1, playing = false, started = 0;
	const still = matchMedia("(prefers-reduced-motion: reduce)");
	const steps = el("ol", { class: "steps" }), routes = el("div");
	const names = ["Route", "Count", "Place", "Dispatch", "Compute", "Combine"];
	const h = w > 1 ? 300 : 150, left = 150;

	function shown_ranks() { /* those of the token's experts, and as many others as there is room for */
		const set = new Set(way.map((x) => x.owner));
		for (let s = 0; s < w && set.size < 12; s++)
			set.add(s);
		return [...set].sort((a, b) => a - b);
	}
	function texts() {
		const x = way[0], buffer = `[${commas(r.c)}, ${commas(p.D)}]`;
		const rank = (n) => w > 1 ? `rank ${n}` : "this rank";
		return [
			`The router of rank ${source} takes the ${r.K} best of ${r.E} experts for token ${commas(token)}: ${way.map((y) => y.e).join(", ")}.`,
			w > 1 ? `Each rank counts its ${commas(r.T * r.K)} routes by expert, and all ${w} ranks of the expert group gather ${w} x ${r.E} counts, ${
				bytes(4 * w * r.E)}. Beside the rows that is all that is exchanged.`
				: `The rank counts its ${commas(r.T * r.K)} routes by expert.`,
			`So the source knows each row's final place before it sends. Expert ${x.e} is on ${rank(x.owner)}; there lie ${commas(x.experts)} rows of experts before it${
				w > 1 ? `, ${commas(x.ranks)} rows that ranks before ${source} send to it` : ""} and ${commas(x.earlier)} of this rank's earlier tokens: row ${
				commas(x.experts)} + ${commas(x.ranks)} + ${commas(x.earlier)} = ${x.row < 0 ? "beyond the capacity: this route is cut, and counted" : commas(x.row)}.`,
			`The token's row, ${bytes(row_bytes)}, goes ${r.K} times straight to its final rows of the buffers ${buffer}: ${bytes(row_bytes * r.K)}, nothing is packed or sorted on the way.`,
			`The experts' products work on the buffer in place. Expert ${x.e} has rows ${commas(r.begin[x.e])} .. ${
				commas(r.begin[x.e] + r.counts.reduce((a, n, s) => a + r.keep[s][x.e], 0) - 1)}; of ${rank(x.owner)}'s ${commas(r.c)} rows ${percent(r.used[x.owner] / r.c)} are in use.`,
			`The rows come back from where they are and are summed by the route's weights in the order of k: always the same order, so always the same bits.`,
		];
	}
	function refresh(all) {
		if (all)
			r = make_routes(p, kind, source, skew);
		way = token_routes(r, token);
		steps.replaceChildren(...texts().map((t, i) => el("li", { class: i === step ? "on" : "", "aria-current": i === step ? "step" : null,
			click: () => go(i) }, el("b", null, `${names[i]}. `), t)));
		routes.replaceChildren(table(`Routes of token ${commas(token)} of rank ${source}`, [["k", "n"], ["expert", "n"], ["on rank", "n"],
			["rows of earlier experts", "n"], ["from earlier ranks", "n"], ["earlier tokens", "n"], ["final row", "n"]],
			way.map((x) => [x.k, x.e, x.owner, commas(x.experts), commas(x.ranks), commas(x.earlier), x.row < 0 ? "cut" : commas(x.row)])));
		view.redraw();
		heat.redraw();
	}
	function go(i, moving) {
		step = i;
		at = moving && !still.matches ? 0 : 1;
		started = performance.now();
		[...steps.children].forEach((li, k) => {
			li.classList.toggle("on", k === i);
			if (k === i)
				li.setAttribute("aria-current", "step");
			else
				li.removeAttribute("aria-current");
		});
		view.redraw();
	}
	function frame(now) {
		if (!playing)
			return;
		at = Math.min(1, (now - started) / 1400);
		if (now - started > (still.matches ? 3000 : 2600)) {
			if (step === names.length - 1)
				return pause();
			go(step + 1, true);
		}
		view.redraw();
		requestAnimationFrame(frame);
	}
	function pause() {
		playing = false;
		play.textContent = "Play";
	}
	const play = el("button", { type: "button", click: () => {
		if (playing)
			return pause();
		playing = true;
		play.textContent = "Pause";
		go(step === names.length - 1 ? 0 : step, true);
		requestAnimationFrame(frame);
	} }, "Play");

	const strip = (v, ranks) => ({ x: left + (v.width < 600 ? 60 : 170), dy: (h - 20) / ranks.length, y: (i) => (w > 1 ? 16 : 55) + i * (h - 20) / ranks.length });
	const view = figure({ label: "A token's rows go to the ranks of its experts and come back", height: h,
		draw(c, v) {
			const ranks = shown_ranks(), g = strip(v, ranks), width = v.width - g.x - 6, bh = Math.max(6, Math.min(22, g.dy - 8));
			const ty = 16 + (h - 40) * (token / Math.max(1, r.T - 1)), tx = left - 40;
			const ease = at * at * (3 - 2 * at);
			c.textAlign = "left";
			c.fillStyle = color("soft");
			c.fillRect(tx - 24, 16, 24, h - 30);
			c.fillStyle = color("accent");
			c.fillRect(tx - 28, ty - 2, 32, 5);
			c.fillStyle = color("dim");
			c.fillText(w > 1 ? `rank ${source}` : "tokens", 0, 16);
			c.fillText(`${commas(r.T)} rows`, 0, 32);
			c.fillText("of x", 0, 48);
			c.fillStyle = color("text");
			c.fillText(`token ${commas(token)}`, 0, Math.max(68, Math.min(h - 8, ty)));
			ranks.forEach((rank, i) => {
				const y = g.y(i);
				c.fillStyle = color("dim");
				c.textAlign = "right";
				c.fillText(w > 1 ? `rank ${rank}` : "rows", g.x - 8, y + bh / 2);
				c.textAlign = "left";
				c.fillStyle = color("soft");
				c.fillRect(g.x, y, width, bh);
				if (step < 1)
					return;
				for (let e = rank * r.here; e < (rank + 1) * r.here; e++) {
					const rows = r.counts.reduce((a, n, s) => a + r.keep[s][e], 0), x0 = g.x + r.begin[e] / r.c * width, ww = rows / r.c * width;
					const mine = way.some((x) => x.e === e);
					c.fillStyle = series(mine ? 1 : 0);
					c.globalAlpha = mine ? 0.7 : e % 2 ? 0.45 : 0.3;
					c.fillRect(x0, y, Math.max(0.5, ww - (ww > 3 ? 1 : 0)), bh);
					if (mine && step >= 2) { /* this rank's block among them */
						c.globalAlpha = 1;
						c.fillRect(g.x + r.first[source][e] / r.c * width, y, Math.max(1.5, r.keep[source][e] / r.c * width), bh);
					}
					c.globalAlpha = 1;
					if (mine && ww > 22 && bh > 12) {
						c.fillStyle = color("text");
						c.fillText(fit_text(c, `${e}`, ww), x0 + 3, y + bh / 2);
					}
				}
			});
			for (const x of way) {
				const i = ranks.indexOf(x.owner), y = g.y(i) + bh / 2, gx = g.x + (Math.max(0, x.row) / r.c) * width;
				const from = [tx + 4, ty], to = [gx, y];
				c.strokeStyle = color("accent");
				c.lineWidth = 1.2;
				if (step === 0) { /* only whom it chooses */
					c.globalAlpha = 0.25 * ease + 0.1;
					c.beginPath();
					c.moveTo(...from);
					c.lineTo(g.x - 60, y);
					c.stroke();
					c.globalAlpha = 1;
					c.fillStyle = color("accent");
					c.fillText(`expert ${x.e}`, from[0] + 10, Math.min(h - 6, 20 + (h - 40) * (x.k + 0.5) / r.K));
					continue;
				}
				if (step < 2 || x.row < 0)
					continue;
				const part = step === 3 ? ease : step === 5 ? 1 - ease : step === 2 ? 0 : 1;
				c.globalAlpha = step === 2 ? 0.3 : 0.55;
				c.beginPath();
				c.moveTo(...from);
				c.bezierCurveTo(from[0] + 80, from[1], to[0] - 60, to[1] - 20, ...to);
				c.stroke();
				c.globalAlpha = 1;
				c.fillStyle = color("accent");
				c.fillRect(gx - 1.2, y - bh / 2 - 3, 2.5, bh + 6);
				if (step >= 3 && !(step === 5 && part === 0)) {
					const q = 1 - part, bx = q ** 3 * from[0] + 3 * q * q * part * (from[0] + 80) + 3 * q * part * part * (to[0] - 60) + part ** 3 * to[0];
					const by = q ** 3 * from[1] + 3 * q * q * part * from[1] + 3 * q * part * part * (to[1] - 20) + part ** 3 * to[1];
					c.fillStyle = color("warn");
					c.fillRect(bx - 5, by - 3, 10, 6);
				}
			}
			if (step === 5 && ease === 1) {
				c.fillStyle = color("warn");
				c.fillRect(tx - 28, ty - 4, 32, 8);
			}
		},
		hit(x, y, v) {
			const ranks = shown_ranks(), g = strip(v, ranks), i = Math.floor((y - g.y(0) + 4) / g.dy), rank = ranks[i], width = v.width - g.x - 6;
			const row = Math.floor((x - g.x) / width * r.c);
			if (rank === undefined || row < 0 || row >= r.c)
				return null;
			let e = rank * r.here;
			while (e + 1 < (rank + 1) * r.here && r.begin[e + 1] <= row)
				e++;
			let s = 0;
			while (s + 1 < w && r.first[s + 1][e] <= row)
				s++;
			return row >= r.used[rank] ? { key: "free", text: `rank ${rank}, row ${commas(row)}: free` }
				: { key: row, text: `rank ${rank}, row ${commas(row)}: of expert ${e}, from rank ${s}` };
		} });
	const heat = figure({ label: "Counts: routes of each source rank to each expert", height: () => 24 + w * Math.max(3, Math.min(16, 160 / w)),
		draw(c, v) {
			const rh = Math.max(3, Math.min(16, 160 / w)), cw = (v.width - 64) / r.E, most = Math.max(...r.counts.map((n) => Math.max(...n)));
			c.textAlign = "left";
			for (let s = 0; s < w; s++) {
				if (rh > 10 || s === source) {
					c.fillStyle = color(s === source ? "accent" : "dim");
					c.fillText(`rank ${s}`, 0, s * rh + rh / 2);
				}
				c.fillStyle = series(0);
				for (let e = 0; e < r.E; e++) {
					c.globalAlpha = 0.05 + 0.95 * r.counts[s][e] / most;
					c.fillRect(64 + e * cw, s * rh, Math.max(0.6, cw - (cw > 4 ? 1 : 0)), rh - (rh > 5 ? 1 : 0));
				}
				c.globalAlpha = 1;
			}
			c.fillStyle = color("dim");
			for (const e of ticks(0, r.E - 1, Math.max(2, v.width / 70)))
				c.fillText(`${e}`, 64 + e * cw, w * rh + 12);
		},
		hit(x, y, v) {
			const rh = Math.max(3, Math.min(16, 160 / w)), e = Math.floor((x - 64) / ((v.width - 64) / r.E)), s = Math.floor(y / rh);
			return e < 0 || e >= r.E || s >= w ? null : { key: `${s} ${e}`, text: `rank ${s} sends ${commas(r.counts[s][e])} routes to expert ${e} on rank ${
				Math.floor(e / r.here)}${r.keep[s][e] < r.counts[s][e] ? `\nof these ${commas(r.counts[s][e] - r.keep[s][e])} are cut` : ""}` };
		} });
	const number = (label, value, most, change) => {
		const i = el("input", { type: "number", min: "0", max: String(most), value: String(value),
			input: () => change(Math.max(0, Math.min(most, Math.floor(Number(i.value) || 0)))) });
		return el("label", null, label, i);
	};
	box.append(
		el("div", { class: "bar" }, play, el("button", { type: "button", click: () => { pause(); go((step + 1) % names.length, false); } }, "Next step"),
			kinds.length > 1 ? choice("layers", kinds.map((k, i) => [i, k.name]), 0, (v) => { kind = kinds[v]; refresh(true); }) : "",
			w > 1 ? number("from rank", source, w - 1, (v) => { source = v; refresh(true); }) : "",
			number("token", token, p.T - 1, (v) => { token = v; refresh(false); }),
			el("label", null, "imbalance", el("input", { type: "range", min: "0", max: "1.5", step: "0.1", value: String(skew), "aria-label": "Imbalance of experts",
				input: (e) => { skew = Number(e.target.value); refresh(true); } }))),
		el("div", { class: "beside even" }, el("figure", null, view.canvas, view.status,
			el("figcaption", null, `Left the tokens of ${w > 1 ? "the source rank" : "the rank"}; right the buffer${w > 1 ? "s" : ""} that rows of routed tokens go to, ${
				commas(kind.capacity)} rows a rank. Orange: experts of this token. Choices are drawn at random, all sizes are the plan's.`)), steps),
		routes,
		w > 1 ? el("figure", null, heat.canvas, heat.status, el("figcaption", null, "Counts that the ranks gather: a row for each source, a column for each expert.")) : "");
	refresh(true);
	go(3, false);
	box.plan_view = { ...box.plan_view, route: { go, routes: () => r, way: () => way, step: () => step } };
}
