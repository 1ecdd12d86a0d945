//! Digests of items by the rule of their filter, which never change: filters store nothing else.

use cuckood_filter::Secret;
use cuckood_state::domain::Normalization;

const ITEMS: [&str; 40] = [
    "a",
    "A",
    " a ",
    "user-4711",
    "USER 4711",
    "K7Q2-9FXM",
    "k7q29fxm",
    "K7Q2_9FXM",
    "SUMMER-2026",
    "6f9619ff-8b86-d011-b42d-00c04fc964ff",
    "Anna.Mueller@Example.com",
    "Müller-Straße 1",
    "MÜLLER-STRASSE 1",
    "Mu\u{308}ller",
    "ünïcödé",
    "Ünïcödé\u{a0}",
    "春のセール",
    "セール１０％",
    "ｾｰﾙ",
    "ＳＡＬＥ－１０",
    "ſale",
    "İstanbul",
    "ıstanbul",
    "ΣΊΣΥΦΟΣ",
    "σίσυφος",
    "ᾳ\u{301}",
    "Å",
    "\u{212b}",
    "ﬁrst",
    "①Ⅷ",
    "가나다",
    "\u{1100}\u{1161}",
    "a\u{200b}b",
    "a\u{ad}b",
    "\u{feff}bom",
    "Ꭰꭰ",
    "𐐀𐐨",
    "10·20‑30—40",
    "👩‍👩‍👧",
    "\u{1e9b}\u{323}",
];

#[test]
fn digests_never_change() {
    let secret = Secret::new([7; 192]);
    for (rule, expected) in [
        (Normalization::Exact, EXACT),
        (Normalization::Ascii, ASCII),
        (Normalization::Case, CASE),
        (Normalization::Code, CODE),
    ] {
        let digests = ITEMS.map(|item| secret.digest(&rule.apply(item.as_bytes()).unwrap()).0);
        assert_eq!(digests, expected, "{rule:?}: {digests:#018x?}");
    }
}

#[rustfmt::skip]
const EXACT: [u64; 40] = [
    0xcd20_9ae1_e9ac_4426, 0x963c_f13f_6c25_31e6, 0xeac4_6848_5c68_e60e, 0x1c1b_ff29_dcb6_bb9a,
    0x2611_338f_d552_355e, 0xd6fd_c657_d7f5_5150, 0x0a9b_79e4_9e1d_a96f, 0xe6e0_a85b_e6e7_23ef,
    0x1526_8278_798f_6484, 0x07ca_15e5_3e2e_7cd6, 0x230f_c43b_2a50_78bf, 0x341b_e8b7_e126_fa10,
    0x601f_7193_3fe7_fd68, 0x56da_6b89_8e76_acb3, 0x5656_0b39_4e3d_c7ba, 0xcc77_01cb_de5a_0044,
    0x9707_ff45_77af_0f74, 0xb7f8_0bab_cfae_c566, 0xd7cb_b7f4_6260_c4fb, 0x4dd7_fabd_9f48_7b7f,
    0xd9c6_1ff4_a18d_84d8, 0x0e36_9c75_5753_b961, 0x6186_c294_5ff0_02fb, 0xaaaf_fa30_86a8_8544,
    0x9993_4e2e_3761_3951, 0x185e_5746_e51f_2cbd, 0x41ed_789c_9c9b_b422, 0x0f28_5a7d_4404_149c,
    0x81a4_0332_0e44_3e22, 0x50e6_002c_6790_9a95, 0x42fa_4b09_2c88_e6c1, 0x75df_2a1b_fbae_0ae4,
    0x5eb5_ba4e_caf0_2a50, 0xaa2c_ce00_472a_60ef, 0xc391_8296_934d_8cf1, 0x7496_9926_fabc_f8a2,
    0x4406_53e3_542b_22fc, 0xc144_bd9d_2b93_25f0, 0xdc14_a3dd_0628_789b, 0x540d_41e7_f556_121f,
];

#[rustfmt::skip]
const ASCII: [u64; 40] = [
    0x963c_f13f_6c25_31e6, 0x963c_f13f_6c25_31e6, 0x963c_f13f_6c25_31e6, 0x8a4c_f00a_8f40_f4a4,
    0x2611_338f_d552_355e, 0xd6fd_c657_d7f5_5150, 0xee89_a645_1b6e_c32b, 0xe6e0_a85b_e6e7_23ef,
    0x1526_8278_798f_6484, 0x69d3_e292_82fc_d15b, 0xce5c_8b22_5d0e_8a66, 0x79e6_8e8a_f068_2a77,
    0x601f_7193_3fe7_fd68, 0xce06_24cb_16bf_395e, 0xf7a4_2eee_2131_8af7, 0x9a5d_a94a_88aa_ee0c,
    0x9707_ff45_77af_0f74, 0xb7f8_0bab_cfae_c566, 0xd7cb_b7f4_6260_c4fb, 0x4dd7_fabd_9f48_7b7f,
    0xe965_3058_85ae_20dc, 0x2994_d044_7baf_0497, 0xec8f_9f23_54ea_2dda, 0xaaaf_fa30_86a8_8544,
    0x9993_4e2e_3761_3951, 0x185e_5746_e51f_2cbd, 0x41ed_789c_9c9b_b422, 0x0f28_5a7d_4404_149c,
    0xea29_d96b_d52f_9d6a, 0x50e6_002c_6790_9a95, 0x42fa_4b09_2c88_e6c1, 0x75df_2a1b_fbae_0ae4,
    0xab8d_37ee_053e_4255, 0xa8a8_8b29_857e_6dd4, 0x0fd1_d26a_c675_dbf6, 0x7496_9926_fabc_f8a2,
    0x4406_53e3_542b_22fc, 0xc144_bd9d_2b93_25f0, 0xdc14_a3dd_0628_789b, 0x540d_41e7_f556_121f,
];

#[rustfmt::skip]
const CASE: [u64; 40] = [
    0xcd20_9ae1_e9ac_4426, 0xcd20_9ae1_e9ac_4426, 0xcd20_9ae1_e9ac_4426, 0x1c1b_ff29_dcb6_bb9a,
    0x9830_b737_4523_534b, 0x0afa_aaf7_f920_28c6, 0x0a9b_79e4_9e1d_a96f, 0x94e2_43db_f8d2_a0c6,
    0xc61d_010d_c935_8f96, 0x07ca_15e5_3e2e_7cd6, 0x275e_f72c_274e_f9cb, 0xdb26_817c_d987_f802,
    0xdb26_817c_d987_f802, 0x9b59_617b_3356_dac4, 0x5656_0b39_4e3d_c7ba, 0x5656_0b39_4e3d_c7ba,
    0x9707_ff45_77af_0f74, 0xb7f8_0bab_cfae_c566, 0xd7cb_b7f4_6260_c4fb, 0x6f18_de7c_3c01_9700,
    0xe6a9_39a8_3b7c_d853, 0x8a4c_ae33_ac80_add9, 0x6186_c294_5ff0_02fb, 0xcca3_40e7_9d11_cc57,
    0xcca3_40e7_9d11_cc57, 0x1a77_1907_4dab_15a3, 0x08c8_86be_792c_d14e, 0x08c8_86be_792c_d14e,
    0xc6d5_fb1d_0455_f7c1, 0x0254_c542_508f_11fc, 0x42fa_4b09_2c88_e6c1, 0xac0a_6da3_3abc_d775,
    0x5eb5_ba4e_caf0_2a50, 0xaa2c_ce00_472a_60ef, 0xc391_8296_934d_8cf1, 0x59d5_f1a0_c6d0_7038,
    0x22f5_3687_7a93_5dc1, 0xc144_bd9d_2b93_25f0, 0xdc14_a3dd_0628_789b, 0xc9c9_6f8d_8098_b837,
];

#[rustfmt::skip]
const CODE: [u64; 40] = [
    0xcd20_9ae1_e9ac_4426, 0xcd20_9ae1_e9ac_4426, 0xcd20_9ae1_e9ac_4426, 0x75b6_3930_b85c_c466,
    0x75b6_3930_b85c_c466, 0x0a9b_79e4_9e1d_a96f, 0x0a9b_79e4_9e1d_a96f, 0x0a9b_79e4_9e1d_a96f,
    0xcca9_f349_82af_9292, 0x6f3e_0b7e_5504_0111, 0xce48_122c_876b_2e6e, 0x2353_3165_dd7b_49f5,
    0x2353_3165_dd7b_49f5, 0x9b59_617b_3356_dac4, 0x5656_0b39_4e3d_c7ba, 0x5656_0b39_4e3d_c7ba,
    0x9707_ff45_77af_0f74, 0xcb7a_d19d_7f9c_bf7a, 0xb0eb_4fdf_1f83_1c80, 0x934a_7e83_4e4e_d247,
    0xe6a9_39a8_3b7c_d853, 0x8a4c_ae33_ac80_add9, 0x6186_c294_5ff0_02fb, 0xcca3_40e7_9d11_cc57,
    0xcca3_40e7_9d11_cc57, 0x1a77_1907_4dab_15a3, 0x08c8_86be_792c_d14e, 0x08c8_86be_792c_d14e,
    0xc6d5_fb1d_0455_f7c1, 0xf795_7a1f_7c29_6ea9, 0x42fa_4b09_2c88_e6c1, 0xac0a_6da3_3abc_d775,
    0x2d19_0515_200a_b799, 0x2d19_0515_200a_b799, 0xf659_caa8_5d67_22e5, 0x59d5_f1a0_c6d0_7038,
    0x22f5_3687_7a93_5dc1, 0x1e4f_4cfe_2d09_f06f, 0xb63d_eea2_c5c3_aeb8, 0xc9c9_6f8d_8098_b837,
];
